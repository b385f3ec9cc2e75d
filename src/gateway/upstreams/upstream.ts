import type { StreamEvent } from '../../model/stream-event.ts'
import type { TurnRequest } from '../../model/turn.ts'

export interface UpstreamReply {
  /** What the adapter set or changed in the request, for the log. */
  forced: Readonly<Record<string, unknown>>
  /** Batches as they arrive: one per piece of network data, so that one write can follow one read. */
  events: AsyncIterable<readonly StreamEvent[]>
}

export interface SendOptions {
  signal: AbortSignal
  /** Calls with the same key go to the same replica while it is healthy. */
  sessionKey?: string
}

/**
 * One inference engine that may return token ids. Not a place for sessions or dialects. `send` rejects with RolloutError
 * while nothing has been answered yet; a failure after that is an `answer-error` event, so that what came before it is
 * kept. Aborting the signal ends the engine's work.
 */
export interface Upstream extends AsyncDisposable {
  readonly kind: string
  send(request: TurnRequest, options: SendOptions): Promise<UpstreamReply>
  /** Tokens the engine would read for this request; nothing is generated. */
  countTokens(request: TurnRequest, signal: AbortSignal): Promise<number>
  /** Names the engine serves. */
  listModels(signal: AbortSignal): Promise<string[]>
  /** How many tokens prompt and answer of this model may have together; undefined when the engine does not say. */
  contextTokens(model: string, signal: AbortSignal): Promise<number | undefined>
}
