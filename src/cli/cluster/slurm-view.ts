import type { Client } from '../../client/client.ts'
import { RolloutError } from '../../model/failure.ts'
import { formatTable } from '../views/table.ts'
import { joinViews, type Member } from './slurm-members.ts'
import type { SlurmPrograms } from './slurm-programs.ts'
import type { SlurmRecord } from './slurm-record.ts'
import type { SlurmTask } from './slurm-tasks.ts'

export interface SlurmView {
  members: Member[]
  /** Job of the server, if `up` started it and Slurm still lists it. */
  server?: SlurmTask
  /** Reason why the server did not answer; absent if it did. */
  problem?: string
}

export interface ViewDeps {
  programs: SlurmPrograms
  /** Undefined if no server is configured. */
  client: Pick<Client, 'listNodes'> | undefined
  now: () => number
}

/** Combines the reports of Slurm and of the server about submitted jobs. Works without an answer of the server. */
export async function viewSlurm(record: SlurmRecord, { programs, client, now }: ViewDeps): Promise<SlurmView> {
  const serverId = record.server?.jobId
  const ids = record.jobs.map(({ jobId }) => jobId)
  const [tasks, nodes] = await Promise.all([
    programs.list(serverId === undefined ? ids : [...ids, serverId]),
    client?.listNodes().catch(toProblem),
  ])
  const known = typeof nodes === 'string' ? undefined : nodes
  const server = tasks.find(({ jobId }) => jobId === serverId)
  return {
    members: record.jobs.flatMap((job) => joinViews(job, tasks, known, now())),
    ...(server !== undefined && { server }),
    ...(typeof nodes === 'string' && { problem: nodes }),
    ...(client === undefined && { problem: 'no server is configured; use --server URL' }),
  }
}

function toProblem(error: unknown): string {
  if (error instanceof RolloutError) return error.message
  throw error
}

export function formatMembers(members: readonly Member[]): string {
  const rows = members.map((member) => [
    member.nodeId,
    member.state,
    member.task,
    member.slurm ?? '-',
    member.machine || '-',
    member.sessions === undefined ? '-' : String(member.sessions),
    member.heartbeatSeconds === undefined ? '-' : `${Math.round(member.heartbeatSeconds)} s`,
    member.timeLeft || '-',
    member.reason === undefined || member.reason === 'None' ? '' : member.reason,
  ])
  return formatTable([
    ['Node', 'State', 'Task', 'Slurm', 'Machine', 'Sessions', 'Heartbeat', 'Time left', 'Reason'],
    ...rows,
  ])
}
