import * as z from 'zod'
import { GatewayNodeInfo, NodeRegistrationRequest, NodeStageMetrics } from '../../model/node.ts'
import { SessionResult, SessionTiming } from '../../model/session.ts'
import { Trajectory } from '../../model/trajectory.ts'
import { Count, Labels, NodeId } from '../fields.ts'
import { json, jsonBody, MIB, route } from '../route.ts'

/** NVIDIA Polar's GatewayNodeInfo with our own fields; its readers ignore unknown fields. */
export const NodeInfo = z.object({
  ...GatewayNodeInfo.shape,
  node_id: NodeId,
  labels: Labels.default([]),
  /** Number of leases that the node holds. */
  leased_sessions: Count.default(0),
})
export type NodeInfo = z.infer<typeof NodeInfo>

export const byNode = z.strictObject({ node_id: NodeId })

export const exampleRegistration = {
  node_id: 'node-0',
  gateway_url: 'http://10.0.0.5:8100',
  max_init_workers: 8,
  max_run_workers: 8,
  max_postrun_workers: 8,
}

export const exampleNode = {
  ...exampleRegistration,
  heartbeat_interval_seconds: 30,
  metrics: {
    init_queue_depth: 0,
    init_inflight: 1,
    ready_depth: 0,
    run_inflight: 3,
    postrun_queue_depth: 0,
    postrun_inflight: 0,
  },
  dispatch_reservations: 0,
  healthy: true,
  draining: false,
  last_heartbeat: '2026-06-01T12:00:00Z',
  labels: [],
  leased_sessions: 4,
}

/** Values in a posted result: the largest one has about 40 million tokens, mask bits and log probabilities. */
export const MAX_RESULT_VALUES = 64_000_000
/** Objects, arrays and keys in a result. With all limits, parsing a result needs less than 4 GB of memory. */
export const MAX_RESULT_MEMBERS = 8_000_000

/** Posted by NVIDIA Polar's nodes: unknown fields are kept. */
export const PostedResult = SessionResult.loose().extend({
  timing: SessionTiming.loose().default({}),
  trajectory: Trajectory.loose(),
})

/** NVIDIA Polar's node routes. Our nodes join and lease by the routes in lease-routes.ts. */
export const nodeRoutes = {
  registerNode: route({
    method: 'post',
    path: '/nodes/register',
    origin: 'nvidia',
    tag: 'nodes',
    summary: 'Register a node.',
    scopes: ['node'],
    body: jsonBody(NodeRegistrationRequest.extend({ node_id: NodeId })),
    nodeField: 'node_id',
    answer: json(NodeInfo),
    idempotency: 'A repeated registration replaces the previous one.',
    examples: { body: exampleRegistration, answer: exampleNode },
  }),
  heartbeatNode: route({
    method: 'post',
    path: '/nodes/{node_id}/heartbeat',
    origin: 'nvidia',
    tag: 'nodes',
    summary: 'Send a heartbeat with the load of the node. 404: the node must register again.',
    scopes: ['node'],
    params: byNode,
    body: jsonBody(z.object({ metrics: NodeStageMetrics.prefault({}) })),
    answer: json(NodeInfo),
    errors: [404],
    examples: { body: { metrics: exampleNode.metrics }, answer: exampleNode },
  }),
  listNodes: route({
    method: 'get',
    path: '/nodes',
    origin: 'nvidia',
    tag: 'nodes',
    summary: 'List all nodes.',
    scopes: ['read', 'trainer', 'node'],
    answer: json(z.array(NodeInfo)),
    examples: { answer: [exampleNode] },
  }),
  getNode: route({
    method: 'get',
    path: '/nodes/{node_id}',
    origin: 'nvidia',
    tag: 'nodes',
    summary: 'Get a node.',
    scopes: ['read', 'trainer', 'node'],
    params: byNode,
    answer: json(NodeInfo),
    errors: [404],
    examples: { answer: exampleNode },
  }),
  removeNode: route({
    method: 'delete',
    path: '/nodes/{node_id}',
    origin: 'nvidia',
    tag: 'nodes',
    summary: 'Drain a node and remove it once it holds no leases.',
    scopes: ['node', 'trainer'],
    params: byNode,
    answer: json(NodeInfo),
    errors: [404],
    examples: { answer: { ...exampleNode, draining: true } },
  }),
  postSessionResult: route({
    method: 'post',
    path: '/callbacks/session_result',
    origin: 'nvidia',
    tag: 'nodes',
    summary: 'Post the result of a session in one request.',
    description:
      'Once accepted, the result is durable. 404: the session does not exist. 409: the session has ended, or another node ' +
      'has leased it. In both cases a retry has the same outcome.',
    scopes: ['node'],
    body: { ...jsonBody(PostedResult, 256 * MIB), maxValues: MAX_RESULT_VALUES, isRaw: true },
    nodeField: 'node_id',
    answer: json(z.object({ status: z.literal('accepted') })),
    errors: [404, 409],
    idempotency: 'The same result again is accepted, and stored once.',
    examples: {
      body: {
        session_id: 'sk-polar-5b0c',
        task_id: 'polar-slime-7-0',
        status: 'ERROR',
        trajectory: { status: 'ERROR', metadata: {}, traces: [], error: 'the image is missing' },
        timing: { init_ms: 12.5 },
        node_id: 'node-0',
        error: 'the image is missing',
        metadata: {},
      },
      answer: { status: 'accepted' },
    },
  }),
}
