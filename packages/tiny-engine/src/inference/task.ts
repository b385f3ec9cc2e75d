/** When a task needs its next turn: now, after its consumer has caught up, or never. */
export type TurnResult = 'again' | 'stalled' | 'done'

/** Work for the model, divided into turns of at most one forward pass. */
export interface Task {
  readonly id: number
  turn(): Promise<TurnResult>
}
