import * as z from 'zod'
import { Count, Cursor, limit, next, TaskId, UnixSeconds } from '../fields.ts'
import { exampleNode, NodeInfo } from './node-routes.ts'
import { json, jsonBody, route } from '../route.ts'
import { TaskWord } from './task-routes.ts'

const EVENT_TYPES = [
  'hello',
  'ping',
  'task.created',
  'task.updated',
  'task.completed',
  'task.deleted',
  'session.state_changed',
] as const

/** As in NVIDIA Polar. A reader leaves out types that it does not know: more may come. */
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
  /** `dead`: given up, and kept for a person to see. */
  state: z.enum(['waiting', 'delivered', 'dead']),
  tries: Count,
  next_at: UnixSeconds.nullable(),
  last_error: z.string().nullable(),
})

/** Of one token: what it may have under way at once. Null: as much as it likes. */
const Quota = z.strictObject({
  max_queued_sessions: Count.nullable(),
  max_running_sessions: Count.nullable(),
})
const QuotaUse = z.object({ ...Quota.shape, token: z.string(), queued_sessions: Count, running_sessions: Count })
const TokenName = z.string().regex(/^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$/, 'must be the name of a token')

const Policy = z.object({ version: Count })

export const serverRoutes = {
  getHealth: route({
    method: 'get',
    path: '/health',
    origin: 'nvidia',
    tag: 'server',
    summary: 'Whether the server is there, and how many nodes it knows.',
    scopes: [],
    answer: json(z.object({ status: z.literal('ok'), nodes: Count })),
    isIdempotent: true,
    examples: { answer: { status: 'ok', nodes: 3 } },
  }),
  getOpenApi: route({
    method: 'get',
    path: '/openapi.json',
    origin: 'polar',
    tag: 'server',
    summary: 'This document.',
    scopes: [],
    answer: json(z.record(z.string(), z.unknown())),
    isIdempotent: true,
  }),
  getStatus: route({
    method: 'get',
    path: '/rollout/status',
    origin: 'nvidia',
    tag: 'server',
    summary: 'All tasks that are under way, the queue and the nodes, at a glance.',
    scopes: ['read', 'trainer'],
    answer: json(
      z.object({
        tasks: z.record(z.string(), TaskWord),
        pipeline: z.object({ pending_sessions: Count, running_sessions: Count.default(0) }),
        nodes: z.object({ nodes: z.array(NodeInfo) }),
      }),
    ),
    isIdempotent: true,
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
    summary: 'What happens, as it happens.',
    description:
      'Begins with `hello`; `ping` when nothing happened for 15 s. With `Last-Event-ID` (or `last_event_id`) it begins ' +
      'right after that event, so nothing is missed across a reconnect.',
    scopes: ['read', 'trainer'],
    query: z.object({
      last_event_id: Cursor.optional(),
      task_id: TaskId.optional().describe('Only events of this task.'),
    }),
    answer: { kind: 'sse', schema: ServerEvent },
    isIdempotent: true,
  }),
  getPolicy: route({
    method: 'get',
    path: '/policy',
    origin: 'polar',
    tag: 'server',
    summary: 'The version of the policy that is served now.',
    scopes: ['read', 'trainer', 'node'],
    answer: json(Policy),
    isIdempotent: true,
    examples: { answer: { version: 7 } },
  }),
  putPolicy: route({
    method: 'put',
    path: '/policy',
    origin: 'polar',
    tag: 'server',
    summary: 'The engines serve this version now: tasks that it makes too old are cancelled.',
    description:
      'Versions only go up; one that comes late changes nothing. The answer is the version that holds. Tokens are not ' +
      'stamped with it, and `warnings` says so: the weight version of tokens is what the gateway of each node was told.',
    scopes: ['trainer'],
    body: jsonBody(z.strictObject({ version: Count })),
    answer: json(Policy.extend({ warnings: z.array(z.string()).optional() })),
    isIdempotent: true,
    examples: { body: { version: 8 }, answer: { version: 8, warnings: ['No token is stamped with this version.'] } },
  }),
  listQuotas: route({
    method: 'get',
    path: '/quotas',
    origin: 'polar',
    tag: 'server',
    summary: 'What each token may have under way, and has.',
    scopes: ['read', 'trainer'],
    answer: json(z.object({ quotas: z.array(QuotaUse) })),
    isIdempotent: true,
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
    origin: 'polar',
    tag: 'server',
    summary: 'Change what a token may have under way.',
    scopes: ['trainer'],
    params: z.strictObject({ token: TokenName }),
    body: jsonBody(Quota),
    answer: json(QuotaUse),
    errors: [404],
    isIdempotent: true,
    examples: { body: { max_queued_sessions: 100_000, max_running_sessions: null } },
  }),
  listCallbacks: route({
    method: 'get',
    path: '/callbacks',
    origin: 'polar',
    tag: 'callbacks',
    summary: 'Calls to trainers that were not delivered, newest first.',
    scopes: ['read', 'trainer'],
    query: z.strictObject({
      state: Callback.shape.state.default('dead'),
      task_id: TaskId.optional(),
      limit: limit(1000, 200),
      cursor: Cursor.optional(),
    }),
    answer: json(z.object({ callbacks: z.array(Callback), ...next })),
    isIdempotent: true,
    examples: { answer: { callbacks: [] } },
  }),
  resendCallback: route({
    method: 'post',
    path: '/callbacks/{callback_id}/resend',
    origin: 'polar',
    tag: 'callbacks',
    summary: 'Try a call again that was given up, from the beginning.',
    scopes: ['trainer'],
    params: z.strictObject({ callback_id: CallbackId }),
    answer: json(Callback),
    errors: [404],
    isIdempotent: true,
    idempotency: 'One that is waiting goes on waiting; one that was delivered is not sent again.',
  }),
}
