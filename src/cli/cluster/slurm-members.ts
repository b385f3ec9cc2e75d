import type { NodeInfo } from '../../api/routes/node-routes.ts'
import { nodeIdOf, type SubmittedJob } from './slurm-record.ts'
import { phaseOf, taskName, type SlurmTask } from './slurm-tasks.ts'

/**
 * `pending`: Slurm has no machine for it yet. `starting`: it has one, and the server has not heard of it. `joined` and
 * `draining` work. `lost`: the server hears nothing of it any more. `unknown`: it runs, and the server could not be
 * asked. `ended`: it left in order. `failed`: the job ended otherwise.
 */
export type MemberState = 'pending' | 'starting' | 'joined' | 'draining' | 'lost' | 'unknown' | 'ended' | 'failed'

/** One task of an array, as Slurm and the server see it. */
export interface Member {
  nodeId: string
  /** As scancel takes it. */
  task: string
  state: MemberState
  /** Slurm's word; absent when it has forgotten the job. */
  slurm?: string
  machine?: string
  timeLeft?: string
  /** Slurm's, for waiting or for having ended. */
  reason?: string
  /** Sessions in its hands. */
  sessions?: number
  heartbeatSeconds?: number
}

/** `nodes` is absent when the server could not be asked. */
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

function stateOf(task: SlurmTask | undefined, node: NodeInfo | undefined, wasAsked: boolean): MemberState {
  const phase = phaseOf(task?.state)
  if (phase === 'over') return task === undefined || task.state === 'COMPLETED' ? 'ended' : 'failed'
  // A task that is queued again is not there, whatever the server still believes of its last turn.
  if (phase === 'waiting') return 'pending'
  if (node === undefined) return wasAsked ? 'starting' : 'unknown'
  if (!node.healthy) return 'lost'
  return node.draining ? 'draining' : 'joined'
}

/** Whether there is, or will be, a node of it. */
export function isLive({ state }: Member): boolean {
  return state !== 'ended' && state !== 'failed'
}
