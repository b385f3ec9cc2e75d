/** Whether a task wants another turn: now, when its consumer has caught up, or never. */
export type TurnResult = 'again' | 'stalled' | 'done'

/** Something the model is wanted for, cut into turns of at most one forward pass each. */
export interface Task {
  readonly id: number
  turn(): Promise<TurnResult>
}

/** Logits with the trained part added; the same array where there is none. */
export function withOutputBias(logits: Float32Array, bias: Float32Array | undefined): Float32Array {
  return bias === undefined ? logits : logits.map((value, id) => value + bias[id]!)
}
