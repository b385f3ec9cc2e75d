import { type Failure, RolloutError } from '../../model/failure.ts'
import {
  type SessionResult,
  type SessionStatus,
  type SessionTiming,
  toNvidiaStatus,
  toNvidiaTiming,
} from '../../model/session.ts'
import type { TaskRequest } from '../../model/task.ts'
import { EARLY_STOP_FIELD } from '../../store/dispatch/port.ts'

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
 * Generates the result of a session without a stored result: cancelled before it ran, or lost. Trainers expect one result for
 * every session; this one holds the error and nothing to train on. `task`: undefined if it was deleted.
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
    failure,
    metadata: { ...task?.metadata, ...flags, attempt, made_by: 'server' },
  }
}

/** NVIDIA Polar's trainer distinguishes an early stop from a failure by these fields. */
function earlyStopFlags(task: TaskRequest | undefined): Record<string, unknown> {
  return {
    early_stop_cancelled: true,
    fully_masked: true,
    early_stop_reason: 'minimum_usable_sessions_reached',
    early_stop_min_usable_sessions: task?.early_stop_min_usable_sessions ?? null,
  }
}

/** Replaces a result whose file is missing or damaged: one lost file must not make the results of the task unreadable. */
export function makeUnreadable(session: EndedSession, task: TaskRequest | undefined, cause: unknown): SessionResult {
  const message = `The result of session ${session.sessionId} was accepted, but its file cannot be read; see the log of the server.`
  const { failure } = new RolloutError('store.corrupt', message, { cause })
  return makeResult({ ...session, status: 'ERROR', failure }, task)
}
