import type { Client } from '../../client/client.ts'
import { RolloutError } from '../../model/failure.ts'
import { formatTable } from '../views/table.ts'
import { joinViews, type Member } from './slurm-members.ts'
import type { SlurmPrograms } from './slurm-programs.ts'
import type { SlurmRecord } from './slurm-record.ts'
import type { SlurmTask } from './slurm-tasks.ts'

export interface SlurmView {
  members: Member[]
  /** The job that is the server, when we started one and Slurm still knows it. */
  server?: SlurmTask
  /** Why the server could not be asked; absent when it could. */
  problem?: string
}

export interface ViewDeps {
  programs: SlurmPrograms
  /** Absent: nobody knows where the server is. */
  client: Pick<Client, 'listNodes'> | undefined
  now: () => number
}

/** All that was submitted from here, as Slurm and the server see it. A server that does not answer costs its half only. */
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
    ...(client === undefined && { problem: 'nobody has said where the server is' }),
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
  return formatTable([['Node', 'State', 'Task', 'Slurm', 'Machine', 'Sessions', 'Heard', 'Time left', 'Why'], ...rows])
}
