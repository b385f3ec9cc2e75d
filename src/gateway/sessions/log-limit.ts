import { RolloutError } from '../../model/failure.ts'
import type { TurnRequest } from '../../model/turn.ts'
import type { TurnDeps } from '../live-turn.ts'
import { logRefusal } from './log-refusal.ts'
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
  const { dialect, model, stream, wire } = request
  logRefusal(session, { dialect, model, stream, request: shortenRequest(wire.text) }, error.failure, ids)
  throw error
}
