import { RolloutError } from '../../model/failure.ts'
import type { TurnRequest } from '../../model/turn.ts'
import type { TurnDeps } from '../live-turn.ts'
import type { Session } from './sessions.ts'
import { shortenRequest } from '../http/shorten-request.ts'

const MB = 1024 ** 2

/**
 * Throws `request.over-storage` when the call log of the session has reached its limit. The first call that is refused is
 * recorded as a failed turn; that marks the session for everyone who reads it.
 */
export function assertLogRoom(
  session: Session,
  request: TurnRequest,
  { logBytes = Infinity, ids }: Pick<TurnDeps, 'logBytes' | 'ids'>,
): void {
  if (session.log.bytes < logBytes) return
  const message = `This session has stored ${Math.floor(logBytes / MB)} MB of model calls, which is its limit. Its further calls are refused.`
  const error = new RolloutError('request.over-storage', message)
  if (!session.isLogFull) {
    session.isLogFull = true
    const { dialect, model, stream, wire } = request
    const id = ids.next('turn')
    const text = shortenRequest(wire.text)
    const index = session.log.turns
    session.log.appendIntent({
      id,
      index,
      dialect,
      startedAt: session.now(),
      model,
      stream,
      request: text,
      headers: {},
    })
    void session.log.appendEnd({ turnId: id, endedAt: session.now(), forced: {}, failure: error.failure })
  }
  throw error
}
