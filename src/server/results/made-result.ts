import { type Failure, RolloutError } from '../../model/failure.ts'
import {
  type SessionResult,
  type SessionStatus,
  type SessionTiming,
  toNvidiaStatus,
  toNvidiaTiming,
} from '../../model/session.ts'
import type { TaskRequest } from '../../model/task.ts'
import { EARLY_STOP_FIELD } from '../../store/dispatch/internal/close-task.ts'

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
 * session that they asked for; it says what happened and has nothing to train on. `task`: absent when it is deleted.
 */
export function makeResult(session: EndedSession, task: TaskRequest | undefined): SessionResult {
  const { sessionId, taskId, attempt, status, nodeId, failure, timing = {} } = session
  const flags = failure?.param === EARLY_STOP_FIELD ? earlyStopFlags(task) : {}
  const why = failure?.message ?? 'The session ended without a result.'
  const error = 'early_stop_cancelled' in flags ? `early_stop_cancelled: ${why}` : why
  return {
    session_id: sessionId,
    task_id: taskId,
    status: toNvidiaStatus(status),
    polar_status: status,
    trajectory: {
      status: status === 'TIMEOUT' ? 'TIMEOUT' : 'ERROR',
      metadata: {
        builder: task?.builder.strategy ?? null,
        session_id: sessionId,
        task_id: taskId,
        record_count: 0,
        task_metadata: task?.metadata ?? {},
        ...flags,
      },
      traces: [],
      error,
    },
    timing: toNvidiaTiming(timing),
    polar_timing: timing,
    node_id: nodeId,
    error,
    ...(failure !== undefined && { failure }),
    metadata: { ...task?.metadata, ...flags, attempt, made_by: 'server' },
  }
}

/** NVIDIA Polar's trainer tells an early stop from a failure by these. */
function earlyStopFlags(task: TaskRequest | undefined): Record<string, unknown> {
  return {
    early_stop_cancelled: true,
    fully_masked: true,
    early_stop_reason: 'minimum_usable_sessions_reached',
    early_stop_min_usable_sessions: task?.early_stop_min_usable_sessions ?? null,
  }
}

/** In the place of one whose file is gone or cannot be read: one lost file must not keep all others from a trainer. */
export function makeUnreadable(session: EndedSession, task: TaskRequest | undefined, cause: unknown): SessionResult {
  const message = `The result of session ${session.sessionId} was accepted, but its file cannot be read; see the server's log.`
  const { failure } = new RolloutError('store.corrupt', message, { cause })
  return makeResult({ ...session, status: 'ERROR', failure }, task)
}
