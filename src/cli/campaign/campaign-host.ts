import { mkdir } from 'node:fs/promises'
import { assertWritable } from '../../compose/writable.ts'
import { acquireLockFile, identifyProcess } from '../../lib/fs/lock-file.ts'
import { RolloutError } from '../../model/failure.ts'
import type { TaskRequest } from '../../model/task.ts'
import { sessionsFolder } from '../../node/session/session-folder.ts'
import { createCallLogReader } from '../../store/call-log/reader.ts'
import type { SessionReader } from '../../store/store.ts'
import { usageError } from '../command.ts'
import { findServer } from '../input/find-server.ts'
import { openLocalNode, toWidths } from '../input/local-node.ts'
import { readTasks, type TaskSources } from '../input/task-sources.ts'
import { warnOfPaths } from '../task/submit-tasks.ts'
import { printError } from '../views/print.ts'
import { createScreen, renderBar, type Screen } from '../views/screen.ts'
import { createStageView } from '../views/stage-view.ts'
import type { CampaignFlags } from './campaign-flags.ts'
import type { CampaignDeps, CampaignSession } from './run-campaign.ts'
import { createDownloadReader, loadUnfinished, ServerSessions } from './server-sessions.ts'

const NAME = 'campaign'

/** A session of an earlier process that continues. */
export interface ContinuedSession {
  taskId: string
  session: CampaignSession
}

/** Where the sessions of a campaign run: this machine or a server. At most one process may use the folder. */
export interface CampaignHost extends AsyncDisposable {
  submit: CampaignDeps['submit']
  /** Limit of sessions in progress. */
  width: number
  reader: Pick<SessionReader, 'load'>
  readTasks(): Promise<TaskRequest[]>
  /** Continues the unfinished sessions of a run. Called once. */
  continueRun(runId: string): Promise<ContinuedSession[]>
  createView(progress: () => { done: number; total: number; note: string }): Screen
}

export interface HostOptions {
  dir: string
  sources: TaskSources
  signal: AbortSignal
}

/** Undefined if `signal` aborts before the host is open. */
export function openHost(flags: CampaignFlags, options: HostOptions): Promise<CampaignHost | undefined> {
  return flags.server === undefined ? openLocalHost(flags, options) : openServerHost(flags, options)
}

async function openLocalHost(
  flags: CampaignFlags,
  { dir, sources, signal }: HostOptions,
): Promise<CampaignHost | undefined> {
  const local = await openLocalNode(NAME, flags, { dir, modules: sources.modules, signal })
  if (local === undefined) return undefined
  const { opened, widths } = local
  const { node } = opened
  return {
    submit: (order) => node.submit(order),
    width: widths.init + widths.ready + widths.run + widths.postrun,
    reader: createCallLogReader({ dir: sessionsFolder(dir) }),
    readTasks: () => readTasks(NAME, sources, opened),
    async continueRun(runId) {
      const running = new Map(node.sessions.map((session) => [session.sessionId, session]))
      return node.recovered.flatMap(({ next, order }) => {
        const session = running.get(order.sessionId)
        return next === 'again' && order.runId === runId && session !== undefined
          ? [{ taskId: order.task.task_id, session }]
          : []
      })
    },
    createView: (progress) => createStageView({ widths, metrics: () => node.metrics, progress }),
    [Symbol.asyncDispose]: () => local[Symbol.asyncDispose](),
  }
}

async function openServerHost(flags: CampaignFlags, { dir, sources }: HostOptions): Promise<CampaignHost> {
  if (sources.harbor.length > 0 || sources.swe.length > 0) {
    throw usageError(NAME, '--harbor and --swe cannot be combined with --server: the nodes choose the runtime')
  }
  await assertWritable(dir)
  const folder = sessionsFolder(dir)
  await mkdir(folder, { recursive: true, mode: 0o700 })
  const server = await findServer(flags)
  const locked = await acquireLockFile(`${dir}/node.lock`, await identifyProcess())
  if (!('lock' in locked)) {
    throw new RolloutError('config.invalid', `Another process uses the folder ${dir}. Use another --out.`)
  }
  const widths = toWidths(NAME, flags)
  const sessions = new ServerSessions(server.client, { dir: folder, now: Date.now })
  return {
    submit: (order) => sessions.submit(order),
    width: widths.init + widths.ready + widths.run + widths.postrun,
    reader: createDownloadReader(folder),
    async readTasks() {
      const tasks = await readTasks(NAME, sources)
      const warning = warnOfPaths(server, tasks)
      if (warning !== undefined) printError(`${warning}\n`)
      return tasks
    },
    async continueRun(runId) {
      const orders = await loadUnfinished(folder, runId)
      return orders.map((order) => ({ taskId: order.task.task_id, session: sessions.submit(order) }))
    },
    createView: (progress) =>
      createScreen(() => {
        const { done, total, note } = progress()
        return [`  done    ${renderBar(done, total)}  ${note}`]
      }),
    [Symbol.asyncDispose]: () => locked.lock.release(),
  }
}
