import type { Failure } from '../../model/failure.ts'
import type { IdSource } from '../../model/ids.ts'
import type { TurnIntent } from '../../store/store.ts'
import type { Session } from './sessions.ts'

/** Records the first call of a session that is refused for good as a failed turn; that marks the session for its readers. */
export function logRefusal(
  session: Session,
  call: Pick<TurnIntent, 'dialect' | 'model' | 'stream' | 'request'>,
  failure: Failure,
  ids: IdSource,
): void {
  if (session.isRefusalLogged) return
  session.isRefusalLogged = true
  const id = ids.next('turn')
  session.log.appendIntent({ ...call, id, index: session.log.turns, startedAt: session.now(), headers: {} })
  void session.log.appendEnd({ turnId: id, endedAt: session.now(), forced: {}, failure })
}
