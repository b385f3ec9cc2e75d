import * as z from 'zod'

/** Queue lengths and running sessions of each stage of a node. Field names are NVIDIA Polar's. */
export const NodeStageMetrics = z.object({
  init_queue_depth: z.int().min(0).default(0),
  init_inflight: z.int().min(0).default(0),
  ready_depth: z.int().min(0).default(0),
  run_inflight: z.int().min(0).default(0),
  postrun_queue_depth: z.int().min(0).default(0),
  postrun_inflight: z.int().min(0).default(0),
})
export type NodeStageMetrics = z.infer<typeof NodeStageMetrics>

export const NodeRegistrationRequest = z.strictObject({
  node_id: z.string().min(1),
  gateway_url: z.url(),
  max_init_workers: z.int().min(1),
  max_run_workers: z.int().min(1),
  max_postrun_workers: z.int().min(1),
  heartbeat_interval_seconds: z.number().positive().default(30),
})
export type NodeRegistrationRequest = z.infer<typeof NodeRegistrationRequest>

export const GatewayNodeInfo = NodeRegistrationRequest.extend({
  metrics: NodeStageMetrics,
  dispatch_reservations: z.int().min(0),
  healthy: z.boolean(),
  draining: z.boolean(),
  last_heartbeat: z.iso.datetime({ offset: true }),
})
export type GatewayNodeInfo = z.infer<typeof GatewayNodeInfo>
