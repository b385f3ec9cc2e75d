import type { z } from 'zod'
import type { NodeInfo } from '../../api/routes/node-routes.ts'
import type { SessionSummary as SessionView } from '../../api/routes/session-routes.ts'
import type { TaskSummary as TaskSchema } from '../../api/routes/task-routes.ts'
import type { SessionSummary, StoredNode, TaskSummary } from '../../store/dispatch/port.ts'

export function toTaskSummary(task: TaskSummary): z.infer<typeof TaskSchema> {
  return {
    task_id: task.taskId,
    status: task.status,
    harness: task.harness,
    model: task.model,
    num_samples: task.need,
    completed_sessions: task.ended,
    errored_sessions: task.failed,
    mean_reward: task.meanReward ?? null,
    mean_traces: task.meanTraces ?? null,
    mean_completions: task.meanCompletions ?? null,
    created_at: task.createdAt / 1000,
    updated_at: task.updatedAt / 1000,
    source: 'live',
    valid_sessions: task.valid,
    usable_sessions: task.usable,
    cancelled_sessions: task.cancelled,
    refills: task.refills,
    dispatch_priority: task.priority,
    policy_version: task.policyVersion ?? null,
  }
}

export function toSessionSummary(session: SessionSummary): SessionView {
  return {
    session_id: session.sessionId,
    task_id: session.taskId,
    status: session.status,
    node_id: session.nodeId,
    reward: session.reward ?? null,
    timing: session.timing ?? {},
    error: session.failure?.message ?? null,
    sample: session.sample,
    attempt: session.state === 'queued' && session.attempt === 1 ? 0 : session.attempt,
    failure: session.failure ?? null,
    progress: session.progress ?? null,
  }
}

/** NVIDIA Polar's limit, in heartbeat intervals. */
const MISSED_HEARTBEATS = 2.5

export function isHealthy({ registration, seenAt }: StoredNode, now: number): boolean {
  return now - seenAt <= registration.heartbeat_interval_seconds * 1000 * MISSED_HEARTBEATS
}

export function toNodeInfo(node: StoredNode, now: number): NodeInfo {
  return {
    ...node.registration,
    metrics: node.metrics,
    // NVIDIA Polar estimates sessions on their way to a node here; with leases there are none.
    dispatch_reservations: 0,
    healthy: isHealthy(node, now),
    draining: node.draining,
    last_heartbeat: new Date(node.seenAt).toISOString(),
    labels: node.labels,
    leased_sessions: node.leased,
  }
}
