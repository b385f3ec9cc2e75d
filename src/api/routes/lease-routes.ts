import * as z from 'zod'
import { arrayOf } from '../../lib/json/list-of.ts'
import { SessionId } from '../../model/ids.ts'
import { NodeRegistrationRequest, NodeStageMetrics } from '../../model/node.ts'
import { PolicyState } from '../../model/policy.ts'
import { SessionOrder } from '../../model/session-order.ts'
import { SessionOutcome } from '../../model/session-outcome.ts'
import { SessionStatus } from '../../model/session.ts'
import { Attempt, Count, FilePath, Labels, NodeId, UploadId, WaitSeconds } from '../fields.ts'
import { json, jsonBody, MIB, route } from '../route.ts'
import { byNode, exampleNode, exampleRegistration, NodeInfo } from './node-routes.ts'
import { ApiTaskState } from './task-routes.ts'

/** One attempt that a node holds. */
const Lease = z.strictObject({ session_id: SessionId, attempt: Attempt })
const Leases = arrayOf(Lease).max(10_000)

const Renewal = Lease.extend({
  status: SessionStatus.optional(),
  progress: z
    .strictObject({
      calls: Count,
      tokens: Count,
      oldest_version: Count.optional().describe('Oldest policy version that sampled a token of the session.'),
    })
    .optional(),
})

/** All but `held` mean: stop the session. `accepted`: its result is stored. `lost`: leased to another node, or unknown. */
const RenewalKind = z.enum(['held', 'accepted', 'cancelled', 'lost'])

const Acceptance = z.object({
  /** `duplicate`: the same result was accepted before; the node may delete its copy. */
  kind: z.enum(['accepted', 'duplicate']),
  /** The attempt failed because of infrastructure, and the session is queued again. Absent for a duplicate. */
  is_refilled: z.boolean().optional(),
  task_status: ApiTaskState.optional(),
})

/** Identifies a process: if two processes join as the same node, requests of the first are rejected (409). */
export const BootId = z.string().min(1).max(128)
const byProcess = { boot_id: BootId.optional().describe('The boot id of the join request. Absent: not checked.') }

/** Limit on a compressed result that is sent inline in the completion request. */
export const MAX_INLINE_BYTES = 64 * 1024

const BASE64 = /^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$/
/** `abort`: a longer text is not matched against the pattern, which fails for very long ones. */
const InlineResult = z
  .string()
  .max(Math.ceil(MAX_INLINE_BYTES / 3) * 4, { abort: true })
  .regex(BASE64, 'must be base64, with padding')

const exampleLease = { session_id: 'ses_1', attempt: 1 }

/**
 * Protocol of our nodes: nodes send requests, the server never calls them. Every order has an attempt number; requests for an
 * attempt that another node has leased since are rejected, so a node that was disconnected can do no harm.
 */
export const leaseRoutes = {
  joinNode: route({
    method: 'post',
    path: '/nodes/{node_id}/join',
    tag: 'leases',
    summary: 'Register a node that leases sessions.',
    description:
      'A restarted node names its previous process in `replaces`. Without it the response is `taken` with the boot id of ' +
      'that process, and nothing changes: so a delayed join request from a dead process cannot evict its successor. A ' +
      'process that had joined before and gets `taken` was replaced and must stop.',
    scopes: ['node'],
    params: byNode,
    body: jsonBody(
      NodeRegistrationRequest.omit({ node_id: true }).extend({
        labels: Labels.default([]),
        version: z.string().min(1).max(64).describe('Version of Polar on the node.'),
        boot_id: BootId.describe(
          'Identifies the process. If it changes, the node has restarted, and sessions that `holding` does not list are requeued.',
        ),
        replaces: BootId.optional().describe('Boot id of the replaced process, as reported by `taken`.'),
        holding: Leases.default([]).describe('Attempts that are running, or finished and not delivered.'),
      }),
      4 * MIB,
    ),
    answer: json(
      z.discriminatedUnion('kind', [
        z.object({
          kind: z.literal('joined'),
          node: NodeInfo,
          /** The node must renew within this time, and should renew three times as often. */
          lease_ms: z.int().min(1),
          /** One for each entry of `holding`: stop all but `held`. */
          outcomes: z.array(Lease.extend({ kind: RenewalKind })),
          max_part_bytes: z.int().min(1).describe('Size limit of one part of an upload.'),
          max_inline_bytes: z
            .int()
            .min(0)
            .optional()
            .describe(
              'Size limit of a result that is sent inline in `complete`. Absent: inline results are not accepted.',
            ),
          policy: PolicyState.optional().describe(
            'The node applies it before it leases sessions. Absent: the server has no policy state.',
          ),
        }),
        z.object({
          kind: z.literal('taken'),
          boot_id: BootId.describe('Boot id of the process that holds the node id.'),
        }),
      ]),
    ),
    examples: {
      body: { ...omitId(exampleRegistration), version: '0.1.0', boot_id: 'b1', labels: ['runtime:docker'] },
      answer: {
        kind: 'joined',
        node: exampleNode,
        lease_ms: 60_000,
        outcomes: [],
        max_part_bytes: 8 * MIB,
        max_inline_bytes: MAX_INLINE_BYTES,
        policy: { change: 12, version: 8, paused: false, mode: 'drain' },
      },
    },
  }),
  leaseSessions: route({
    method: 'post',
    path: '/nodes/{node_id}/lease',
    tag: 'leases',
    summary: 'Lease sessions for free slots; with `wait`, long-poll until some are available.',
    description:
      'A node sends one lease request at a time. `holding` lists all attempts of the node: leases that are not listed ' +
      'and were never renewed did not reach the node, and are requeued at once. 404: the node must join. 409 ' +
      '`request.stale`: another process has joined under this node id.',
    scopes: ['node'],
    params: byNode,
    body: jsonBody(
      z.strictObject({
        free_slots: z.int().min(1).max(1000),
        ahead: z
          .int()
          .min(0)
          .max(1000)
          .default(0)
          .describe('How many of the free slots would only prefetch; nodes with idle slots are served first.'),
        labels: Labels.optional().describe('Absent: the labels of the join request.'),
        affinity: Labels.default([]).describe(
          'Images and workspaces that are cached on the node: a preference, not a requirement.',
        ),
        holding: Leases.optional(),
        wait: WaitSeconds,
        ...byProcess,
      }),
      4 * MIB,
    ),
    answer: json(
      z.object({
        orders: z.array(z.object({ order: SessionOrder, lease_ms: z.int().min(1) })),
        /** The node gets no more leases: it must finish its sessions and leave. */
        draining: z.boolean(),
      }),
    ),
    errors: [404, 409],
    idempotency: 'With `holding`: the next request requeues leases whose response was lost.',
    examples: {
      body: { free_slots: 4, wait: 30, holding: [exampleLease] },
      answer: { orders: [], draining: false },
    },
  }),
  renewLeases: route({
    method: 'post',
    path: '/nodes/{node_id}/renew',
    tag: 'leases',
    summary: 'Renew leases and report each session’s status.',
    scopes: ['node'],
    params: byNode,
    body: jsonBody(
      z.strictObject({ renewals: arrayOf(Renewal).max(10_000), metrics: NodeStageMetrics.optional(), ...byProcess }),
      4 * MIB,
    ),
    answer: json(z.object({ outcomes: z.array(Lease.extend({ kind: RenewalKind })), draining: z.boolean() })),
    errors: [404, 409],
    examples: {
      body: { renewals: [{ ...exampleLease, status: 'RUNNING', progress: { calls: 3, tokens: 812 } }] },
      answer: { outcomes: [{ ...exampleLease, kind: 'held' }], draining: false },
    },
  }),
  completeSession: route({
    method: 'post',
    path: '/nodes/{node_id}/complete',
    tag: 'leases',
    summary: 'Complete a session: its outcome, its result (inline or uploaded) and its artifacts.',
    description:
      'Once accepted, the result is durable, and the node may delete its copy. 409 `request.stale`: the attempt was ' +
      'cancelled, or another node has leased the session. 404: the session does not exist. In both cases a retry has the ' +
      'same outcome.',
    scopes: ['node'],
    params: byNode,
    body: jsonBody(
      z.strictObject({
        outcome: SessionOutcome,
        result: InlineResult.optional().describe(
          'The compressed result in base64, up to `max_inline_bytes` of the join response.',
        ),
        result_upload_id: UploadId.optional().describe(
          'The upload that holds the result. Neither field: the attempt has no result.',
        ),
        artifacts: arrayOf(z.strictObject({ path: FilePath, upload_id: UploadId }))
          .max(10_000)
          .default([]),
      }),
      8 * MIB,
    ),
    nodeField: 'outcome.nodeId',
    answer: json(Acceptance),
    errors: [404, 409],
    idempotency: 'The same result again, inline or uploaded, returns `duplicate`.',
    examples: { answer: { kind: 'accepted', is_refilled: false, task_status: 'running' } },
  }),
  releaseLeases: route({
    method: 'post',
    path: '/nodes/{node_id}/release',
    tag: 'leases',
    summary: 'Release leases that the node will not run; not counted as a failure.',
    scopes: ['node'],
    params: byNode,
    body: jsonBody(z.strictObject({ leases: Leases.min(1), ...byProcess }), 4 * MIB),
    answer: json(z.object({ released: z.array(Lease) })),
    examples: { body: { leases: [exampleLease] }, answer: { released: [exampleLease] } },
  }),
  drainNode: route({
    method: 'post',
    path: '/nodes/{node_id}/drain',
    tag: 'leases',
    summary: 'Drain a node: it gets no new leases, finishes its sessions and leaves.',
    scopes: ['node', 'trainer'],
    params: byNode,
    answer: json(NodeInfo),
    errors: [404],
    examples: { answer: { ...exampleNode, draining: true } },
  }),
  leaveNode: route({
    method: 'post',
    path: '/nodes/{node_id}/leave',
    tag: 'leases',
    summary: 'Remove a node and requeue its sessions at once.',
    scopes: ['node'],
    params: byNode,
    query: z.strictObject(byProcess),
    answer: json(z.object({ node_id: NodeId, requeued_sessions: Count })),
    errors: [409],
    idempotency: 'Has no effect if the node does not exist.',
    examples: { answer: { node_id: 'node-0', requeued_sessions: 0 } },
  }),
}

function omitId({ node_id: _, ...rest }: typeof exampleRegistration) {
  return rest
}
