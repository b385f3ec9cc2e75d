import { type Failure, RolloutError } from '../model/failure.ts'
import type { SessionResult, SessionStatus, SessionTiming } from '../model/session.ts'

export interface EndedSession {
  sessionId: string
  taskId: string
  attempt: number
  status: SessionStatus
  nodeId: string | null
  failure?: Failure
  timing?: SessionTiming
}

/**
 * The result of a session that brought none: cancelled before it ran, or lost for good. Trainers want one for every
 * session that they asked for; it says what happened and has nothing to train on.
 */
export function makeResult(session: EndedSession): SessionResult {
  const { sessionId, taskId, attempt, status, nodeId, failure, timing } = session
  const error = failure?.message ?? 'The session ended without a result.'
  return {
    session_id: sessionId,
    task_id: taskId,
    status,
    trajectory: { status: status === 'TIMEOUT' ? 'TIMEOUT' : 'ERROR', metadata: {}, traces: [], error },
    timing: timing ?? {},
    node_id: nodeId,
    error,
    ...(failure !== undefined && { failure }),
    metadata: { attempt, made_by: 'server' },
  }
}

/** In the place of one whose file is gone or cannot be read: one lost file must not keep all others from a trainer. */
export function makeUnreadable(session: EndedSession, cause: unknown): SessionResult {
  const message = `The result of session ${session.sessionId} was accepted, but its file cannot be read; see the server's log.`
  const { failure } = new RolloutError('store.corrupt', message, { cause })
  return makeResult({ ...session, status: 'ERROR', failure })
}
