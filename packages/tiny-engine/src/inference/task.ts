/** When a task needs its next turn: now, after its consumer has caught up, or never. */
export type TurnResult = 'again' | 'stalled' | 'done'

/** Work for the model, divided into turns of at most one forward pass. */
export interface Task {
  readonly id: number
  turn(): Promise<TurnResult>
}

/** Returns the logits plus the trained bias; the same array without a bias. */
export function withOutputBias(logits: Float32Array, bias: Float32Array | undefined): Float32Array {
  return bias === undefined ? logits : logits.map((value, id) => value + bias[id]!)
}
