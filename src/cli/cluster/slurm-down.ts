import { rm, writeFile } from 'node:fs/promises'
import type { Client } from '../../client/client.ts'
import { pause } from '../../client/send.ts'
import { RolloutError } from '../../model/failure.ts'
import { nodeIdOf, readRecord, writeRecord } from './slurm-record.ts'
import { stopFile } from './slurm-script.ts'
import { phaseOf, taskName, type SlurmTask } from './slurm-tasks.ts'
import type { SlurmDeps } from './slurm-up.ts'

export interface DownPlan {
  data: string
  /** How long nodes may finish their sessions; 0: they return them to the queue. */
  graceMs: number
  /** Keeps a server that `up` started. */
  keepsServer: boolean
}

const POLL_MS = { first: 500, most: 5000 }
/** Time for Slurm to end cancelled jobs: its KillWait is 30 s by default. */
const CANCEL_MS = 120_000

/**
 * Drains the nodes, cancels the remaining jobs, then the server if `up` started it. May be repeated, also after an
 * interruption: a job stays in the record until Slurm reports its end.
 */
export async function takeDown(
  { data, graceMs, keepsServer }: DownPlan,
  deps: SlurmDeps & { client: Client | undefined },
): Promise<{ drained: number; cancelled: number }> {
  const { programs, clock, say } = deps
  const record = await readRecord(data)
  const ids = record.jobs.map(({ jobId }) => jobId)
  for (const { workDir, jobId } of record.jobs) await writeFile(stopFile(workDir, jobId), '').catch(() => {})
  const list = async (): Promise<SlurmTask[]> =>
    (await programs.list(ids)).filter(({ state }) => phaseOf(state) !== 'over')
  const atFirst = await list()
  const waiting = atFirst.filter(({ state }) => phaseOf(state) === 'waiting')
  // Waiting tasks hold no sessions.
  await programs.cancel(waiting.map(taskName))
  const running = atFirst.filter(({ state }) => phaseOf(state) === 'running')
  let left = running
  if (running.length > 0 && graceMs > 0 && (await drainAll(record.jobs, running, deps))) {
    say(`draining ${running.length} nodes`)
    left = await awaitEnd(list, clock.now() + graceMs, deps)
  }
  if (left.length > 0) {
    say(`cancelling ${left.length} jobs`)
    await programs.cancel(left.map(taskName))
  }
  const stuck = await awaitEnd(list, clock.now() + CANCEL_MS, deps)
  if (stuck.length > 0) {
    const names = stuck.map(taskName).join(', ')
    throw new RolloutError(
      'server.failed',
      `Slurm has not ended ${names} yet. Try again, or contact the administrator of the cluster.`,
    )
  }
  for (const { workDir, jobId } of record.jobs) await rm(stopFile(workDir, jobId), { force: true }).catch(() => {})
  if (record.server !== undefined && !keepsServer) await programs.cancel([record.server.jobId])
  const { server, schemaVersion } = record
  await writeRecord(data, { schemaVersion, jobs: [], server: keepsServer ? server : undefined })
  return { drained: running.length - left.length, cancelled: waiting.length + left.length }
}

/** Returns whether the server accepted the requests. A node that the server does not know holds no sessions; Slurm ends it. */
async function drainAll(
  jobs: readonly { name: string; jobId: string }[],
  running: readonly SlurmTask[],
  { client, signal, say }: SlurmDeps & { client: Client | undefined },
): Promise<boolean> {
  if (client === undefined) return false
  for (const { jobId, task } of running) {
    const job = jobs.find((each) => each.jobId === jobId)
    if (job === undefined || task === undefined) continue
    try {
      await client.drainNode({ params: { node_id: nodeIdOf(job, task) }, signal })
    } catch (error) {
      if (!(error instanceof RolloutError)) throw error
      if (error.code === 'request.not-found') continue
      say(`the server cannot drain nodes: ${error.message}`)
      return false
    }
  }
  return true
}

/** Waits until all tasks have ended. Returns the tasks that are left at the deadline. */
async function awaitEnd(
  list: () => Promise<SlurmTask[]>,
  deadline: number,
  { clock, signal }: SlurmDeps,
): Promise<SlurmTask[]> {
  for (let delay = POLL_MS.first; ; delay = Math.min(POLL_MS.most, delay * 1.3)) {
    const left = await list()
    const remaining = deadline - clock.now()
    if (left.length === 0 || remaining <= 0) return left
    await pause(Math.min(delay, remaining), signal, clock)
  }
}
