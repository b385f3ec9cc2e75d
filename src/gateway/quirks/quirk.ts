import type { TurnRequest } from '../../model/turn.ts'

/**
 * One rule against bytes that change from call to call or run to run without meaning anything to the model, and so break
 * what two prompts have in common. Applied to what the engine reads; the log keeps what the harness sent.
 */
export interface Quirk {
  readonly name: string
  /** What the harness does, and what it costs. For the docs. */
  readonly evidence: string
  /** The same request, not a copy, when the rule does not apply. */
  apply(request: TurnRequest): TurnRequest
}
