import * as z from 'zod'
import { arrayOf } from '../../lib/json/list-of.ts'
import { SessionId } from '../../model/ids.ts'
import { NodeRegistrationRequest, NodeStageMetrics } from '../../model/node.ts'
import { SessionOrder } from '../../model/session-order.ts'
import { SessionOutcome } from '../../model/session-outcome.ts'
import { SessionStatus } from '../../model/session.ts'
import { TaskWord } from './task-routes.ts'
import { Attempt, Count, FilePath, Labels, NodeId, UploadId, WaitSeconds } from '../fields.ts'
import { byNode, exampleNode, exampleRegistration, NodeInfo } from './node-routes.ts'
import { json, jsonBody, MIB, route } from '../route.ts'

/** One attempt in the hands of a node. */
const Lease = z.strictObject({ session_id: SessionId, attempt: Attempt })
const Leases = arrayOf(Lease).max(10_000)

const Renewal = Lease.extend({
  status: SessionStatus.optional(),
  progress: z.strictObject({ calls: Count, tokens: Count }).optional(),
})

/** All but `held` mean: stop it. `accepted`: its result is here. `lost`: somebody else has it, or nobody knows it. */
const RenewalKind = z.enum(['held', 'accepted', 'cancelled', 'lost'])

const Acceptance = z.object({
  /** `duplicate`: this very result had been accepted before; the node may forget it. */
  kind: z.enum(['accepted', 'duplicate']),
  /** Infrastructure had spoilt it, and the session is queued again. Absent for a duplicate. */
  is_refilled: z.boolean().optional(),
  task_status: TaskWord.optional(),
})

/** Two processes may believe to be the same node: the one that joined first is told so (409) and should stop. */
const BootId = z.string().min(1).max(128)
const byProcess = { boot_id: BootId.optional().describe('As it joined with. Absent: not checked.') }

/** What a result may be, as it is stored, to come with the completion itself. */
export const MOST_INLINE_BYTES = 64 * 1024

const BASE64 = /^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$/
/** Nothing that is longer is held against the pattern: it could not be, if it were very long. */
const InlineResult = z
  .string()
  .max(Math.ceil(MOST_INLINE_BYTES / 3) * 4, { abort: true })
  .regex(BASE64, 'must be base64, with padding')

const exampleLease = { session_id: 'ses_1', attempt: 1 }

/**
 * How our nodes work: they ask, the server never calls them. Every order carries an attempt number; whatever a node says
 * of an attempt that has passed to another node is refused, so a node that was cut off can do no harm when it is back.
 */
export const leaseRoutes = {
  joinNode: route({
    method: 'post',
    path: '/nodes/{node_id}/join',
    origin: 'polar',
    tag: 'leases',
    summary: 'A node is ready to take work.',
    description:
      'Who begins anew takes the place of the process before by naming it in `replaces`: an answer `taken` says which one ' +
      'that is, and nothing has changed. So a call of a process that has died, and that arrives late, cannot put out its ' +
      'successor. Who had joined before and hears `taken` was replaced, and should stop.',
    scopes: ['node'],
    params: byNode,
    body: jsonBody(
      NodeRegistrationRequest.omit({ node_id: true }).extend({
        labels: Labels.default([]),
        version: z.string().min(1).max(64).describe('Of Polar, on the node.'),
        boot_id: BootId.describe(
          'Another one than last time: the node has begun anew, and what it does not hold any more is queued.',
        ),
        replaces: BootId.optional().describe('The process whose place it takes, as an answer `taken` has named it.'),
        holding: Leases.default([]).describe('What it still works on, or has finished and not delivered.'),
      }),
      4 * MIB,
    ),
    answer: json(
      z.discriminatedUnion('kind', [
        z.object({
          kind: z.literal('joined'),
          node: NodeInfo,
          /** Renew within this time, and rather three times in it. */
          lease_ms: z.int().min(1),
          /** Of `holding`: all but `held` are to be stopped. */
          outcomes: z.array(Lease.extend({ kind: RenewalKind })),
          max_part_bytes: z.int().min(1).describe('Of one part of an upload.'),
          max_inline_bytes: z
            .int()
            .min(0)
            .optional()
            .describe('Of a result that comes with `complete` and need not be uploaded. Absent: none may.'),
        }),
        z.object({
          kind: z.literal('taken'),
          boot_id: BootId.describe('The process that has the name, and was not named in `replaces`.'),
        }),
      ]),
    ),
    isIdempotent: true,
    examples: {
      body: { ...omitId(exampleRegistration), version: '0.1.0', boot_id: 'b1', labels: ['runtime:docker'] },
      answer: {
        kind: 'joined',
        node: exampleNode,
        lease_ms: 60_000,
        outcomes: [],
        max_part_bytes: 8 * MIB,
        max_inline_bytes: MOST_INLINE_BYTES,
      },
    },
  }),
  leaseSessions: route({
    method: 'post',
    path: '/nodes/{node_id}/lease',
    origin: 'polar',
    tag: 'leases',
    summary: 'Take work for free slots; waits for some if asked to.',
    description:
      'One call at a time. `holding` is all that the node has: what the server gave it and that it does not name was ' +
      'lost on the way, and is given out again at once. 404: the node should join. 409 `request.stale`: another process ' +
      'has joined under its name.',
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
          .describe('How many of them would only wait at the node: nodes with idle slots come before it.'),
        labels: Labels.optional().describe('Absent: those it joined with.'),
        affinity: Labels.default([]).describe('Images and workspaces that are warm here: preferred, not demanded.'),
        holding: Leases.optional(),
        wait: WaitSeconds,
        ...byProcess,
      }),
      4 * MIB,
    ),
    answer: json(
      z.object({
        orders: z.array(z.object({ order: SessionOrder, lease_ms: z.int().min(1) })),
        /** Nothing more will come: finish what is there, and leave. */
        draining: z.boolean(),
      }),
    ),
    errors: [404, 409],
    isIdempotent: true,
    idempotency: 'With `holding`: orders whose answer was lost are taken back by the next call.',
    examples: {
      body: { free_slots: 4, wait: 30, holding: [exampleLease] },
      answer: { orders: [], draining: false },
    },
  }),
  renewLeases: route({
    method: 'post',
    path: '/nodes/{node_id}/renew',
    origin: 'polar',
    tag: 'leases',
    summary: 'The node still works on these, and they are so far.',
    scopes: ['node'],
    params: byNode,
    body: jsonBody(
      z.strictObject({ renewals: arrayOf(Renewal).max(10_000), metrics: NodeStageMetrics.optional(), ...byProcess }),
      4 * MIB,
    ),
    answer: json(z.object({ outcomes: z.array(Lease.extend({ kind: RenewalKind })), draining: z.boolean() })),
    errors: [404, 409],
    isIdempotent: true,
    examples: {
      body: { renewals: [{ ...exampleLease, status: 'RUNNING', progress: { calls: 3, tokens: 812 } }] },
      answer: { outcomes: [{ ...exampleLease, kind: 'held' }], draining: false },
    },
  }),
  completeSession: route({
    method: 'post',
    path: '/nodes/{node_id}/complete',
    origin: 'polar',
    tag: 'leases',
    summary: 'A session is over: how it ended, its result if that is short, and which uploads belong to it.',
    description:
      'Accepted means stored for good; the node may delete its copy. 409 `request.stale`: the attempt has passed to ' +
      'another node or was cancelled. 404: nobody knows the session. Both mean that it will never be taken.',
    scopes: ['node'],
    params: byNode,
    body: jsonBody(
      z.strictObject({
        outcome: SessionOutcome,
        result: InlineResult.optional().describe(
          'The result itself, the bytes that would be uploaded in base64, where the server takes so many when a node joins.',
        ),
        result_upload_id: UploadId.optional().describe(
          'Else the upload that holds it. Neither: the attempt brought none.',
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
    isIdempotent: true,
    idempotency: 'The same result again, in either way, answers `duplicate`.',
    examples: { answer: { kind: 'accepted', is_refilled: false, task_status: 'running' } },
  }),
  releaseLeases: route({
    method: 'post',
    path: '/nodes/{node_id}/release',
    origin: 'polar',
    tag: 'leases',
    summary: 'Give work back that the node will not do; that is nobody’s failure.',
    scopes: ['node'],
    params: byNode,
    body: jsonBody(z.strictObject({ leases: Leases.min(1), ...byProcess }), 4 * MIB),
    answer: json(z.object({ released: z.array(Lease) })),
    isIdempotent: true,
    examples: { body: { leases: [exampleLease] }, answer: { released: [exampleLease] } },
  }),
  drainNode: route({
    method: 'post',
    path: '/nodes/{node_id}/drain',
    origin: 'polar',
    tag: 'leases',
    summary: 'Give a node nothing new. It hears of it when it next asks, finishes, and leaves.',
    scopes: ['node', 'trainer'],
    params: byNode,
    answer: json(NodeInfo),
    errors: [404],
    isIdempotent: true,
    examples: { answer: { ...exampleNode, draining: true } },
  }),
  leaveNode: route({
    method: 'post',
    path: '/nodes/{node_id}/leave',
    origin: 'polar',
    tag: 'leases',
    summary: 'The node is going away. What it still holds is given to others at once.',
    scopes: ['node'],
    params: byNode,
    query: z.strictObject(byProcess),
    answer: json(z.object({ node_id: NodeId, requeued_sessions: Count })),
    errors: [409],
    isIdempotent: true,
    idempotency: 'A node that is gone already has left.',
    examples: { answer: { node_id: 'node-0', requeued_sessions: 0 } },
  }),
}

function omitId({ node_id: _, ...rest }: typeof exampleRegistration) {
  return rest
}
