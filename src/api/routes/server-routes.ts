import * as z from 'zod'
import { Count, Cursor, limit, next, TaskId, UnixSeconds } from '../fields.ts'
import { json, jsonBody, route } from '../route.ts'
import { exampleNode, NodeInfo } from './node-routes.ts'
import { ApiTaskState } from './task-routes.ts'

const EVENT_TYPES = [
  'hello',
  'ping',
  'task.created',
  'task.updated',
  'task.completed',
  'task.deleted',
  'session.state_changed',
] as const

/** NVIDIA Polar's event format. Readers must ignore unknown types: more may be added. */
const ServerEvent = z.object({
  type: z.string().describe(`Such as ${EVENT_TYPES.map((type) => `\`${type}\``).join(', ')}.`),
  ts: UnixSeconds,
  data: z.record(z.string(), z.unknown()),
})
export type ServerEvent = z.infer<typeof ServerEvent>

const CallbackId = z.int().min(1)

const Callback = z.object({
  callback_id: CallbackId,
  task_id: TaskId,
  url: z.string(),
  /** `dead`: not retried, and kept for an operator to inspect. */
  state: z.enum(['waiting', 'delivered', 'dead']),
  tries: Count,
  next_at: UnixSeconds.nullable(),
  last_error: z.string().nullable(),
})

/** Limits of one token. Null: no limit. */
const Quota = z.strictObject({
  max_queued_sessions: Count.nullable(),
  max_running_sessions: Count.nullable(),
})
const QuotaUse = z.object({ ...Quota.shape, token: z.string(), queued_sessions: Count, running_sessions: Count })
const TokenName = z.string().regex(/^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$/, 'must be the name of a token')

export const serverRoutes = {
  getHealth: route({
    method: 'get',
    path: '/health',
    origin: 'nvidia',
    tag: 'server',
    summary: 'Check that the server and its database respond; returns the number of nodes.',
    scopes: [],
    answer: json(z.object({ status: z.literal('ok'), nodes: Count })),
    examples: { answer: { status: 'ok', nodes: 3 } },
  }),
  getOpenApi: route({
    method: 'get',
    path: '/openapi.json',
    tag: 'server',
    summary: 'Get this document.',
    scopes: [],
    answer: json(z.record(z.string(), z.unknown())),
  }),
  getStatus: route({
    method: 'get',
    path: '/rollout/status',
    origin: 'nvidia',
    tag: 'server',
    summary: 'Get running tasks, queue length and nodes.',
    scopes: ['read', 'trainer'],
    answer: json(
      z.object({
        tasks: z.record(z.string(), ApiTaskState),
        pipeline: z.object({ pending_sessions: Count, running_sessions: Count.default(0) }),
        nodes: z.object({ nodes: z.array(NodeInfo) }),
      }),
    ),
    examples: {
      answer: {
        tasks: { 'polar-slime-7-0': 'running' },
        pipeline: { pending_sessions: 4, running_sessions: 4 },
        nodes: { nodes: [exampleNode] },
      },
    },
  }),
  streamEvents: route({
    method: 'get',
    path: '/events',
    origin: 'nvidia',
    tag: 'server',
    summary: 'Stream events of tasks and sessions.',
    description:
      'The first event is `hello`; `ping` follows after 15 s without events. With `Last-Event-ID` (or `last_event_id`) the ' +
      'stream starts after that event, so a reader that reconnects misses nothing.',
    scopes: ['read', 'trainer'],
    query: z.object({
      last_event_id: Cursor.optional(),
      task_id: TaskId.optional().describe('Only events of this task.'),
    }),
    answer: { kind: 'sse', schema: ServerEvent },
  }),
  listQuotas: route({
    method: 'get',
    path: '/quotas',
    tag: 'server',
    summary: 'List quotas and their use by token.',
    scopes: ['read', 'trainer'],
    answer: json(z.object({ quotas: z.array(QuotaUse) })),
    examples: {
      answer: {
        quotas: [
          {
            token: 'slime',
            max_queued_sessions: 100_000,
            max_running_sessions: null,
            queued_sessions: 4,
            running_sessions: 4,
          },
        ],
      },
    },
  }),
  putQuota: route({
    method: 'put',
    path: '/quotas/{token}',
    tag: 'server',
    summary: 'Set the quota of a token.',
    scopes: ['trainer'],
    params: z.strictObject({ token: TokenName }),
    body: jsonBody(Quota),
    answer: json(QuotaUse),
    errors: [404],
    examples: { body: { max_queued_sessions: 100_000, max_running_sessions: null } },
  }),
  listCallbacks: route({
    method: 'get',
    path: '/callbacks',
    tag: 'callbacks',
    summary: 'List callbacks by state, newest first.',
    scopes: ['read', 'trainer'],
    query: z.strictObject({
      state: Callback.shape.state.default('dead'),
      task_id: TaskId.optional(),
      limit: limit(1000, 200),
      cursor: Cursor.optional(),
    }),
    answer: json(z.object({ callbacks: z.array(Callback), ...next })),
    examples: { answer: { callbacks: [] } },
  }),
  resendCallback: route({
    method: 'post',
    path: '/callbacks/{callback_id}/resend',
    tag: 'callbacks',
    summary: 'Resend a dead callback, with no tries counted.',
    scopes: ['trainer'],
    params: z.strictObject({ callback_id: CallbackId }),
    answer: json(Callback),
    errors: [404],
    idempotency: 'Has no effect on a waiting or delivered callback.',
  }),
}
