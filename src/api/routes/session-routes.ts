import * as z from 'zod'
import { Failure, FailureCode } from '../../model/failure.ts'
import { SessionId } from '../../model/ids.ts'
import { SessionResult, SessionStatus, SessionTiming } from '../../model/session.ts'
import { Count, Cursor, Digest, FilePath, limit, next, NodeId, TaskId, UnixSeconds } from '../fields.ts'
import { json, route } from '../route.ts'

/** Field names are NVIDIA Polar's, down to `error`; those after it are ours. */
export const SessionSummary = z.object({
  session_id: SessionId,
  task_id: TaskId,
  status: SessionStatus,
  node_id: NodeId.nullable(),
  /** Null: there is none, which is not the same as zero. */
  reward: z.number().nullable(),
  timing: SessionTiming,
  error: z.string().nullable(),
  sample: Count,
  attempt: Count.describe('0 until a node has taken it.'),
  failure: Failure.nullable(),
  /** Calls and tokens so far, as the node last said. */
  progress: z.object({ calls: Count, tokens: Count }).nullable(),
})
export type SessionSummary = z.infer<typeof SessionSummary>

const SessionDetail = SessionSummary.extend({
  attempts: z.array(
    z.object({
      attempt: Count,
      node_id: NodeId.nullable(),
      /** How it ended: accepted, lost, released, failed, cancelled; null while it is under way. */
      ending: z.string().nullable(),
      failure: Failure.nullable(),
      leased_at: UnixSeconds.nullable(),
      ended_at: UnixSeconds.nullable(),
    }),
  ),
})

const bySession = z.strictObject({ session_id: SessionId })

export const sessionRoutes = {
  listSessions: route({
    method: 'get',
    path: '/sessions',
    origin: 'polar',
    tag: 'sessions',
    summary: 'Sessions of all tasks, newest first.',
    scopes: ['read', 'trainer'],
    query: z.strictObject({
      status: z.array(SessionStatus).min(1).max(SessionStatus.options.length).optional(),
      task_id: TaskId.optional(),
      node_id: NodeId.optional(),
      harness: z.string().min(1).max(256).optional(),
      failure: FailureCode.optional(),
      limit: limit(1000, 200),
      cursor: Cursor.optional(),
    }),
    answer: json(z.object({ sessions: z.array(SessionSummary), ...next })),
    isIdempotent: true,
    examples: { answer: { sessions: [] } },
  }),
  getSession: route({
    method: 'get',
    path: '/sessions/{session_id}',
    origin: 'polar',
    tag: 'sessions',
    summary: 'One session and all attempts at it.',
    scopes: ['read', 'trainer'],
    params: bySession,
    answer: json(SessionDetail),
    errors: [404],
    isIdempotent: true,
  }),
  cancelSession: route({
    method: 'delete',
    path: '/sessions/{session_id}',
    origin: 'polar',
    tag: 'sessions',
    summary: 'Cancel one session; what it still brings is refused.',
    scopes: ['trainer'],
    params: bySession,
    answer: json(
      z.object({
        session_id: SessionId,
        status: SessionStatus,
        /** False: it was over already. */
        cancelled: z.boolean(),
      }),
    ),
    errors: [404],
    isIdempotent: true,
    examples: { answer: { session_id: 'ses_1', status: 'CANCELLED', cancelled: true } },
  }),
  retrySession: route({
    method: 'post',
    path: '/sessions/{session_id}/retry',
    origin: 'polar',
    tag: 'sessions',
    summary: 'Make a session again that did not end by the policy’s own doing.',
    description: '409: it is under way, or has a result that stands.',
    scopes: ['trainer'],
    params: bySession,
    answer: json(SessionSummary),
    errors: [404, 409, 429],
    isIdempotent: false,
    idempotency: 'A second call finds the session queued and is refused with 409; look at the session to know.',
  }),
  getSessionResult: route({
    method: 'get',
    path: '/sessions/{session_id}/result',
    origin: 'polar',
    tag: 'sessions',
    summary: 'The result of a session that is over.',
    description: 'Compressed with zstd or gzip when asked for. 409: it is not over.',
    scopes: ['read', 'trainer'],
    params: bySession,
    answer: json(SessionResult),
    errors: [404, 409],
    isIdempotent: true,
  }),
  listArtifacts: route({
    method: 'get',
    path: '/sessions/{session_id}/artifacts',
    origin: 'polar',
    tag: 'sessions',
    summary: 'Files kept of a session: logs of its harness and grader, and what the task asked to keep.',
    scopes: ['read', 'trainer'],
    params: bySession,
    answer: json(
      z.object({
        session_id: SessionId,
        artifacts: z.array(
          z.object({
            path: FilePath,
            bytes: Count,
            /** It was longer than the node keeps. */
            is_cut: z.boolean(),
            digest: Digest.nullable(),
          }),
        ),
      }),
    ),
    errors: [404],
    isIdempotent: true,
    examples: { answer: { session_id: 'ses_1', artifacts: [] } },
  }),
  getArtifact: route({
    method: 'get',
    path: '/sessions/{session_id}/artifact',
    origin: 'polar',
    tag: 'sessions',
    summary: 'The bytes of one file of a session.',
    scopes: ['read', 'trainer'],
    params: bySession,
    query: z.strictObject({
      path: FilePath,
      offset: Count.default(0).describe('Bytes to leave out.'),
      length: z.int().min(1).optional().describe('At most so many bytes; absent: to the end.'),
    }),
    answer: { kind: 'bytes' },
    errors: [404, 416],
    isIdempotent: true,
  }),
}
