import * as z from 'zod'
import { PauseMode, PolicyState } from '../../model/policy.ts'
import { Count, NodeId, WaitSeconds } from '../fields.ts'
import { json, jsonBody, route } from '../route.ts'
import { BootId } from './lease-routes.ts'
import { byNode } from './node-routes.ts'

/** What the gateway of one node has confirmed. */
const PolicyNode = z.object({
  node_id: NodeId,
  change: Count.nullable().describe('The latest change that the node applied; null: none since the node joined.'),
  version: Count.nullable().describe('The version that the node stamps tokens with.'),
  in_flight: Count.describe('Model calls in flight when the node last reported.'),
  confirmed: z.boolean().describe('The node applied the current state, and in a `drain` pause has no call in flight.'),
  lost: z
    .boolean()
    .describe('The lease of the node is over. No request waits for the node, and results of its sessions are refused.'),
})
export type PolicyNode = z.infer<typeof PolicyNode>

const Policy = PolicyState.extend({
  version: Count.describe('0 until a trainer sets a version.'),
  nodes: z.array(PolicyNode),
})
export type Policy = z.infer<typeof Policy>

/** Stored as 32-bit integers. */
const Int32 = Count.max(2_147_483_647)

/** Below 300 seconds, after which common HTTP clients give up. */
const TimeoutSeconds = z
  .number()
  .min(0)
  .max(240)
  .default(120)
  .describe('How long to wait until all nodes have confirmed. Longer than a lease: a node that died is then skipped.')

const WAITS =
  'Waits until every node has confirmed. 504 `server.unconfirmed` names the nodes that have not when the time is over; ' +
  'the change stays, and the same request can be sent again to wait longer. A node whose lease is over is not waited for: ' +
  'results of its sessions are refused, and it applies the current state before it leases sessions again.'

const example = {
  change: 12,
  version: 8,
  paused: false,
  mode: 'drain',
  nodes: [{ node_id: 'node-0', change: 12, version: 8, in_flight: 0, confirmed: true, lost: false }],
}

/**
 * Weight version and pause of all gateways. The server stores the state, nodes long-poll it and confirm it; the server never
 * calls a node.
 */
export const policyRoutes = {
  getPolicy: route({
    method: 'get',
    path: '/policy',
    tag: 'policy',
    summary: 'Get the policy version, the pause, and what each node has confirmed.',
    scopes: ['read', 'trainer', 'node'],
    answer: json(Policy),
    examples: { answer: example },
  }),
  putPolicy: route({
    method: 'put',
    path: '/policy',
    tag: 'policy',
    summary: 'Set the version that all gateways stamp tokens with; cancels stale tasks.',
    description:
      'The version never decreases: an older one has no effect, and the response holds the current version. With `resume` ' +
      `a pause ends with the same change: no gateway sends a call before it has the version. ${WAITS}`,
    scopes: ['trainer'],
    body: jsonBody(
      z.strictObject({ version: Int32, resume: z.boolean().default(false), timeout_seconds: TimeoutSeconds }),
    ),
    answer: json(Policy.extend({ warnings: z.array(z.string()).optional() })),
    errors: [504],
    examples: { body: { version: 8, resume: true }, answer: example },
  }),
  pausePolicy: route({
    method: 'post',
    path: '/policy/pause',
    tag: 'policy',
    summary: 'Pause all gateways: they hold new model calls, which do not fail.',
    description:
      '`drain`: also waits until no call is in flight. `hold`: calls in flight continue in the engine, which the trainer ' +
      `pauses itself. The pause ends by request only, and survives restarts of servers and nodes. ${WAITS} 409: another ` +
      'request ended the pause meanwhile.',
    scopes: ['trainer'],
    body: jsonBody(z.strictObject({ mode: PauseMode.default('drain'), timeout_seconds: TimeoutSeconds })),
    answer: json(Policy),
    errors: [409, 504],
    examples: { body: { mode: 'drain', timeout_seconds: 120 }, answer: { ...example, paused: true } },
  }),
  resumePolicy: route({
    method: 'post',
    path: '/policy/resume',
    tag: 'policy',
    summary: 'End the pause: all gateways send the held calls.',
    description: WAITS,
    scopes: ['trainer'],
    query: z.strictObject({ timeout_seconds: TimeoutSeconds }),
    answer: json(Policy),
    errors: [504],
    examples: { answer: example },
  }),
  pollPolicy: route({
    method: 'post',
    path: '/nodes/{node_id}/policy',
    tag: 'leases',
    summary: 'Confirm the applied policy state; with `wait`, long-poll until it changes.',
    description: '404: the node must join. 409 `request.stale`: another process has joined under this node id.',
    scopes: ['node'],
    params: byNode,
    body: jsonBody(
      z.strictObject({
        boot_id: BootId,
        change: Int32.describe('The change that the gateway has applied.'),
        version: Int32.nullable().describe('The version that the gateway stamps tokens with.'),
        in_flight: Int32.describe('Model calls in flight.'),
        wait: WaitSeconds,
      }),
    ),
    answer: json(PolicyState),
    errors: [404, 409],
    examples: {
      body: { boot_id: 'b1', change: 11, version: 7, in_flight: 0, wait: 30 },
      answer: { change: 12, version: 8, paused: false, mode: 'drain' },
    },
  }),
}
