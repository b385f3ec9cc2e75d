import { RolloutError } from '../model/failure.ts'
import type { TurnRequest } from '../model/turn.ts'
import { assertAdmissible } from './http/admit-request.ts'
import type { Upstream } from './upstreams/upstream.ts'

/**
 * Sends a request that belongs to no session and drops the answer. Rejects when the engine does not answer, and for a
 * request that must not be sent to an engine.
 */
export async function sendControlRequest(
  upstream: Pick<Upstream, 'send'>,
  request: TurnRequest,
  signal: AbortSignal,
): Promise<void> {
  assertAdmissible(request)
  const { events } = await upstream.send(request, { signal })
  for await (const batch of events) {
    for (const event of batch) {
      if (event.type !== 'answer-error') continue
      const { code, message, ...fields } = event.failure
      throw new RolloutError(code, message, fields)
    }
  }
}
