import { RolloutError } from '../../model/failure.ts'
import type { IdSource } from '../../model/ids.ts'
import type { TurnRequest } from '../../model/turn.ts'
import { intentOf } from './live-turn.ts'
import type { Session } from './sessions.ts'
import { shortenRequest } from '../http/shorten-request.ts'

const MB = 1024 ** 2

/**
 * Throws `request.over-storage` when the call log of the session has reached its limit. The first rejected call is
 * recorded as a failed turn, which shows readers of the session that calls were rejected.
 */
export function assertLogLimit(
  session: Session,
  request: TurnRequest,
  { logBytes = Infinity, ids }: { logBytes?: number; ids: IdSource },
): void {
  if (session.log.bytes < logBytes) return
  const message = `This session has stored ${Math.floor(logBytes / MB)} MB of model calls, which is its limit. Further calls are rejected.`
  const error = new RolloutError('request.over-storage', message)
  if (!session.isLogFull) {
    session.isLogFull = true
    const intent = intentOf(request, ids.next('turn'), session.now())
    session.log.appendIntent({
      ...intent,
      index: session.log.turns,
      request: shortenRequest(intent.request),
      headers: {},
    })
    void session.log.appendEnd({ turnId: intent.id, endedAt: session.now(), forced: {}, failure: error.failure })
  }
  throw error
}
