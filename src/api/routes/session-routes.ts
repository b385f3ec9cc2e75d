import * as z from 'zod'
import { Failure, FailureCode } from '../../model/failure.ts'
import { SessionId } from '../../model/ids.ts'
import { SessionResult, SessionStatus, SessionTiming } from '../../model/session.ts'
import { Count, Cursor, Digest, FilePath, limit, next, NodeId, TaskId, UnixSeconds } from '../fields.ts'
import { json, route } from '../route.ts'

/** The fields up to `error` are NVIDIA Polar's; those after it are ours. */
export const SessionSummary = z.object({
  session_id: SessionId,
  task_id: TaskId,
  status: SessionStatus,
  node_id: NodeId.nullable(),
  /** Null: no reward, which is not the same as zero. */
  reward: z.number().nullable(),
  timing: SessionTiming,
  error: z.string().nullable(),
  sample: Count,
  attempt: Count.describe('0 until a node has leased the session.'),
  failure: Failure.nullable(),
  /** Model calls and tokens so far, as last reported by the node. */
  progress: z.object({ calls: Count, tokens: Count }).nullable(),
})
export type SessionSummary = z.infer<typeof SessionSummary>

const SessionDetail = SessionSummary.extend({
  attempts: z.array(
    z.object({
      attempt: Count,
      node_id: NodeId.nullable(),
      /** accepted, lost, released or cancelled; null while the attempt runs. */
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
    tag: 'sessions',
    summary: 'List sessions of all tasks, newest first.',
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
    examples: { answer: { sessions: [] } },
  }),
  getSession: route({
    method: 'get',
    path: '/sessions/{session_id}',
    tag: 'sessions',
    summary: 'Get a session with all its attempts.',
    scopes: ['read', 'trainer'],
    params: bySession,
    answer: json(SessionDetail),
    errors: [404],
  }),
  cancelSession: route({
    method: 'delete',
    path: '/sessions/{session_id}',
    tag: 'sessions',
    summary: 'Cancel a session; its result is refused.',
    scopes: ['trainer'],
    params: bySession,
    answer: json(
      z.object({
        session_id: SessionId,
        status: SessionStatus,
        /** False: the session had already ended. */
        cancelled: z.boolean(),
      }),
    ),
    errors: [404],
    examples: { answer: { session_id: 'ses_1', status: 'CANCELLED', cancelled: true } },
  }),
  retrySession: route({
    method: 'post',
    path: '/sessions/{session_id}/retry',
    tag: 'sessions',
    summary: 'Retry a session whose end was not caused by the agent.',
    description: '409: the session has not ended, or its result is final.',
    scopes: ['trainer'],
    params: bySession,
    answer: json(SessionSummary),
    errors: [404, 409, 429],
    isIdempotent: false,
    idempotency: 'A second request finds the session queued and is refused with 409; read the session to check.',
  }),
  getSessionResult: route({
    method: 'get',
    path: '/sessions/{session_id}/result',
    tag: 'sessions',
    summary: 'Get the result of an ended session.',
    description: 'Compressed with zstd or gzip according to `Accept-Encoding`. 409: the session has not ended.',
    scopes: ['read', 'trainer'],
    params: bySession,
    answer: json(SessionResult),
    errors: [404, 409],
  }),
  listArtifacts: route({
    method: 'get',
    path: '/sessions/{session_id}/artifacts',
    tag: 'sessions',
    summary: 'List the stored files of a session: logs of harness and grader, and artifacts of the task.',
    scopes: ['read', 'trainer'],
    params: bySession,
    answer: json(
      z.object({
        session_id: SessionId,
        artifacts: z.array(
          z.object({
            path: FilePath,
            bytes: Count,
            /** The file exceeded the node’s size limit and was truncated. */
            is_cut: z.boolean(),
            digest: Digest.nullable(),
          }),
        ),
      }),
    ),
    errors: [404],
    examples: { answer: { session_id: 'ses_1', artifacts: [] } },
  }),
  getArtifact: route({
    method: 'get',
    path: '/sessions/{session_id}/artifact',
    tag: 'sessions',
    summary: 'Get one file of a session.',
    scopes: ['read', 'trainer'],
    params: bySession,
    query: z.strictObject({
      path: FilePath,
      offset: Count.default(0).describe('Number of bytes to skip.'),
      length: z.int().min(1).optional().describe('Maximum number of bytes; absent: to the end.'),
    }),
    answer: { kind: 'bytes' },
    errors: [404, 416],
  }),
}
