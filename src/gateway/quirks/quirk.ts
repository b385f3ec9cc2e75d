import type { TurnRequest } from '../../model/turn.ts'

/**
 * A rule that removes text which changes from call to call or run to run without a meaning for the model, and so shortens
 * the common prefix of prompts. It changes the request that the engine reads; the call log keeps the original request.
 */
export interface Quirk {
  readonly name: string
  /** What the harness does, and what it costs. Shown in the docs. */
  readonly evidence: string
  /** Returns the same object when the rule does not apply. */
  apply(request: TurnRequest): TurnRequest
}
