import { readFile } from 'node:fs/promises'
import type { Client } from '../../client/client.ts'
import { pause } from '../../client/send.ts'
import type { Config } from '../../config/config.ts'
import { errnoOf } from '../../lib/fs/errno.ts'
import type { Clock } from '../../lib/async/clock.ts'
import { RolloutError } from '../../model/failure.ts'
import { keepConfig, keepScript, keepToken, makeWorkDir } from './slurm-files.ts'
import { isLive, type Member } from './slurm-members.ts'
import { toOptions } from './slurm-options.ts'
import type { SlurmPrograms } from './slurm-programs.ts'
import { readRecord, writeRecord, type SubmittedJob } from './slurm-record.ts'
import { renderNodeScript, renderServerScript, serverAddressFile } from './slurm-script.ts'
import { phaseOf } from './slurm-tasks.ts'
import { viewSlurm } from './slurm-view.ts'

export interface SlurmDeps {
  programs: SlurmPrograms
  clock: Clock
  signal: AbortSignal
  /** Prints a line of progress. */
  say: (line: string) => void
}

/** Settings of all jobs. */
export interface SubmitPlan {
  /** Name of the jobs, and prefix of the node ids. */
  name: string
  config: Config
  workDir: string
  polar: readonly string[]
  /** Names of environment variables that jobs need besides the general ones. */
  environment: readonly string[]
}

export interface NodesPlan extends SubmitPlan {
  server: string
  /** Undefined for an open server. */
  token: string | undefined
  /** Arguments after `--`, for `polar node`. */
  moreArguments: readonly string[]
}

/** Submits the missing nodes. Idempotent. Undefined if none is missing. */
export async function submitNodes(
  plan: NodesPlan,
  deps: SlurmDeps & { client: Client },
): Promise<SubmittedJob | undefined> {
  const { config, workDir, name, polar } = plan
  const { slurm } = config.cluster
  const record = await readRecord(config.data)
  const view = await viewSlurm(record, { ...deps, now: () => deps.clock.now() })
  const live = view.members.filter(isLive)
  if (live.length > 0) deps.say(`${live.length} nodes run or are queued already`)
  const missing = slurm.nodes - live.length
  if (missing <= 0) return undefined
  await makeWorkDir(workDir)
  const { token_env: _, token_file: __, id: ___, ...node } = config.node
  const tokenFile = plan.token === undefined ? {} : { token_file: await keepToken(workDir, 'node.token', plan.token) }
  const configFile = await keepConfig(workDir, 'node', {
    ...config,
    node: { ...node, ...tokenFile, server: plan.server },
  })
  const text = renderNodeScript({
    name,
    workDir,
    tasks: missing,
    options: toOptions(slurm, plan.environment),
    rawOptions: slurm.sbatch,
    setup: slurm.setup,
    polar,
    nodeArguments: ['--config', configFile, ...plan.moreArguments],
    requeue: slurm.requeue,
  })
  const script = await keepScript(workDir, 'nodes', text)
  const jobId = await deps.programs.submit(script)
  const job: SubmittedJob = {
    jobId,
    name,
    tasks: missing,
    submittedAt: deps.clock.now(),
    workDir,
    script,
    server: plan.server,
  }
  const others = record.jobs.filter((each) => live.some(({ task }) => task.startsWith(`${each.jobId}_`)))
  await writeRecord(config.data, { ...record, jobs: [...others, job] })
  deps.say(`submitted job ${jobId} with ${missing} ${missing === 1 ? 'node' : 'nodes'}: ${script}`)
  return job
}

/** Starts the server as a job, unless its job runs already, and returns its URL. */
export async function submitServer(plan: SubmitPlan, deps: SlurmDeps): Promise<string> {
  const { config, workDir } = plan
  const { slurm } = config.cluster
  await makeWorkDir(workDir)
  const record = await readRecord(config.data)
  const known = record.server === undefined ? [] : await deps.programs.list([record.server.jobId])
  let server = known.some(({ state }) => phaseOf(state) !== 'over') ? record.server : undefined
  if (server === undefined) {
    const { gres: _, ...resources } = slurm
    const text = renderServerScript({
      name: plan.name,
      workDir,
      options: toOptions(resources, plan.environment),
      rawOptions: slurm.sbatch,
      setup: slurm.setup,
      polar: plan.polar,
      serverArguments: ['--config', await keepConfig(workDir, 'server', config)],
    })
    server = { jobId: await deps.programs.submit(await keepScript(workDir, 'server', text)), workDir }
    await writeRecord(config.data, { ...record, server })
    deps.say(`submitted job ${server.jobId} with the server`)
  }
  const url = await awaitAddress(server, deps)
  await writeRecord(config.data, { ...(await readRecord(config.data)), server: { ...server, url } })
  deps.say(`the server is at ${url}`)
  return url
}

const POLL_MS = { first: 500, most: 5000 }

async function awaitAddress({ jobId, workDir }: { jobId: string; workDir: string }, deps: SlurmDeps): Promise<string> {
  const file = serverAddressFile(workDir, jobId)
  for (let delay = POLL_MS.first; ; delay = Math.min(POLL_MS.most, delay * 1.3)) {
    const text = await readFile(file, 'utf8').catch((error: unknown) => {
      if (errnoOf(error) === 'ENOENT') return ''
      throw error
    })
    if (text.trim() !== '') return text.trim()
    const [job] = await deps.programs.list([jobId])
    if (phaseOf(job?.state) === 'over') {
      const message = `The server's job ${jobId} ended before the server was ready; see ${workDir}/logs/${jobId}.log.`
      throw new RolloutError('server.unreachable', message)
    }
    await pause(delay, deps.signal, deps.clock)
  }
}

/** Waits until all live nodes have joined, a new node has failed, or the time limit is reached. */
export async function awaitJoined(
  submitted: SubmittedJob | undefined,
  { data, timeoutMs }: { data: string; timeoutMs: number },
  deps: SlurmDeps & { client: Client },
): Promise<Member[]> {
  const deadline = deps.clock.now() + timeoutMs
  const record = await readRecord(data)
  let shown = ''
  for (let delay = POLL_MS.first; ; delay = Math.min(POLL_MS.most, delay * 1.3)) {
    const { members, problem } = await viewSlurm(record, { ...deps, now: () => deps.clock.now() })
    // Nodes that ended earlier are ignored.
    const awaited = members.filter((each) => isLive(each) || each.task.startsWith(`${submitted?.jobId}_`))
    const line = [summarize(awaited), ...(problem === undefined ? [] : [problem])].join('; ')
    if (line !== shown) deps.say(line)
    shown = line
    const isSettled = awaited.every(({ state }) => state === 'joined' || state === 'draining' || state === 'ended')
    if (isSettled || awaited.some(({ state }) => state === 'failed') || deps.clock.now() >= deadline) return awaited
    await pause(Math.min(delay, Math.max(1, deadline - deps.clock.now())), deps.signal, deps.clock)
  }
}

/** Formats counts as `3 joined, 1 pending`. */
function summarize(members: readonly Member[]): string {
  const counts = Map.groupBy(members, ({ state }) => state)
  return [...counts].map(([state, of]) => `${of.length} ${state}`).join(', ')
}
