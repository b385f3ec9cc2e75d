import type { NodeInfo } from '../../api/routes/node-routes.ts'
import { nodeIdOf, type SubmittedJob } from './slurm-record.ts'
import { phaseOf, taskName, type SlurmTask } from './slurm-tasks.ts'

/**
 * `pending`: Slurm has not assigned a machine. `starting`: the task runs, and its node has not joined. `joined` and `draining`:
 * the node works. `lost`: the node sends no heartbeats. `unknown`: the task runs, and the server does not answer. `ended`: the
 * job completed. `failed`: the job ended otherwise.
 */
export type MemberState = 'pending' | 'starting' | 'joined' | 'draining' | 'lost' | 'unknown' | 'ended' | 'failed'

/** A task of a job array with its node, as Slurm and the server report them. */
export interface Member {
  nodeId: string
  /** Name for scancel. */
  task: string
  state: MemberState
  /** Slurm state; absent if Slurm no longer lists the job. */
  slurm?: string
  machine?: string
  timeLeft?: string
  /** Slurm's reason why the task waits or ended. */
  reason?: string
  /** Leased sessions. */
  sessions?: number
  heartbeatSeconds?: number
}

/** `nodes` is undefined if the server did not answer. */
export function joinViews(
  job: SubmittedJob,
  tasks: readonly SlurmTask[],
  nodes: readonly NodeInfo[] | undefined,
  now: number,
): Member[] {
  return Array.from({ length: job.tasks }, (_, index) => {
    const nodeId = nodeIdOf(job, index)
    const task = tasks.find((each) => each.jobId === job.jobId && each.task === index)
    const node = nodes?.find((each) => each.node_id === nodeId)
    return {
      nodeId,
      task: taskName({ jobId: job.jobId, task: index }),
      state: stateOf(task, node, nodes !== undefined),
      ...(task !== undefined && {
        slurm: task.state,
        machine: task.machine,
        timeLeft: task.timeLeft,
        reason: task.reason,
      }),
      ...(node !== undefined && {
        sessions: node.leased_sessions,
        heartbeatSeconds: Math.max(0, (now - Date.parse(node.last_heartbeat)) / 1000),
      }),
    }
  })
}

function stateOf(task: SlurmTask | undefined, node: NodeInfo | undefined, isServerKnown: boolean): MemberState {
  const phase = phaseOf(task?.state)
  if (phase === 'over') return task === undefined || task.state === 'COMPLETED' ? 'ended' : 'failed'
  // For a requeued task, the server may still have the node of its previous start.
  if (phase === 'waiting') return 'pending'
  if (node === undefined) return isServerKnown ? 'starting' : 'unknown'
  if (!node.healthy) return 'lost'
  return node.draining ? 'draining' : 'joined'
}

/** Whether the task has, or will have, a node. */
export function isLive({ state }: Member): boolean {
  return state !== 'ended' && state !== 'failed'
}
