import { setTimeout as sleep } from 'node:timers/promises'
import { createLimit } from '../../lib/async/limit.ts'
import { toVisibleLine } from '../../lib/visible-text.ts'
import { RolloutError } from '../../model/failure.ts'
import type { FoundServer } from '../input/find-server.ts'
import { createScreen, renderBar } from '../views/screen.ts'
import { formatReward, type TaskSummary } from '../views/task-view.ts'
import { findTask } from './find-task.ts'

export interface WaitOptions {
  ids: readonly string[]
  /** Called again after the server did not answer: it may have restarted at another URL. */
  find: () => Promise<FoundServer>
  /** How long to retry while the server does not answer. */
  patienceMs: number
  signal: AbortSignal
  onEnd?: (task: TaskSummary) => void
  stream?: Pick<NodeJS.WriteStream, 'isTTY' | 'write' | 'columns'>
}

/** Limit of concurrent requests, and of progress bars on the screen. */
const MAX_CONCURRENT = 16
const POLL_SECONDS = 20
const REFRESH_MS = 2000
const RETRY_MS = 1000

interface Progress {
  id: string
  task?: TaskSummary
  running: number
  isOver: boolean
}

/** Waits until all tasks have ended, also across restarts of the server, and returns their summaries. */
export async function waitForTasks(options: WaitOptions): Promise<TaskSummary[]> {
  const { ids, signal, stream = process.stderr } = options
  const all: Progress[] = ids.map((id) => ({ id, running: 0, isOver: false }))
  const connection = new ServerConnection(options)
  await connection.open()
  const limit = createLimit(MAX_CONCURRENT)
  using _screen = createScreen(() => render(all, connection.awayMs), stream)
  const ended = new AbortController()
  const refreshing = stream.isTTY ? refresh(all, connection, AbortSignal.any([signal, ended.signal])) : undefined
  try {
    return await Promise.all(all.map((progress) => limit(() => follow(progress, connection, options))))
  } finally {
    ended.abort()
    await refreshing
  }
}

async function follow(
  progress: Progress,
  connection: ServerConnection,
  { signal, onEnd }: WaitOptions,
): Promise<TaskSummary> {
  const params = { task_id: progress.id }
  // The first request does not wait, so that a wrong address is reported at once.
  for (let known = 0, wait = 0; ; wait = POLL_SECONDS) {
    const { status, completed_sessions: completed } = await connection.call(({ client }) =>
      client.getTask({
        params,
        query: { wait, known_completed: known, results: 'reference' },
        signal,
      }),
    )
    known = completed
    if (status === 'running' || status === 'cancelling') continue
    const task = await connection.call(({ client }) => findTask(client, progress.id, signal))
    progress.task = task
    progress.isOver = true
    onEnd?.(task)
    return task
  }
}

/** Updates the progress bars. Failures are ignored: `follow()` handles them. */
async function refresh(all: readonly Progress[], connection: ServerConnection, signal: AbortSignal): Promise<void> {
  while (!signal.aborted) {
    for (const progress of all.filter(({ isOver }) => !isOver).slice(0, MAX_CONCURRENT)) {
      try {
        const { client } = connection.server
        progress.task = await findTask(client, progress.id, signal)
        const query = { status: 'RUNNING' as const, limit: 1000 }
        const params = { task_id: progress.id }
        progress.running = (await client.listTaskSessions({ params, query, signal })).sessions.length
      } catch {
        break
      }
    }
    await sleep(REFRESH_MS, undefined, { signal }).catch(() => {})
  }
}

function render(all: readonly Progress[], awayMs: number): string[] {
  const width = Math.min(32, Math.max(...all.map(({ id }) => toVisibleLine(id).length)))
  const open = all.filter(({ isOver }) => !isOver)
  const lines = (all.length <= MAX_CONCURRENT ? all : open.slice(0, MAX_CONCURRENT)).map(
    ({ id: given, task, running, isOver }) => {
      const id = toVisibleLine(given)
      const name = (id.length > width ? `${id.slice(0, width - 1)}…` : id).padEnd(width)
      if (task === undefined) return `  ${name}  ${renderBar(0, 0)}`
      const reward = task.mean_reward === null ? '' : `  mean reward ${formatReward(task.mean_reward)}`
      const now = isOver ? `  ${task.status}` : running > 0 ? `  ${running} running` : '  waiting'
      const failed = task.errored_sessions > 0 ? `  ${task.errored_sessions} failed` : ''
      return `  ${name}  ${renderBar(task.completed_sessions, task.num_samples)}${now}${failed}${reward}`
    },
  )
  if (all.length > MAX_CONCURRENT)
    lines.push(`  ${'tasks'.padEnd(width)}  ${renderBar(all.length - open.length, all.length)}`)
  if (awayMs > 0) lines.push(`  The server has not answered for ${Math.round(awayMs / 1000)} s; retrying.`)
  return lines
}

/** Calls the server, and finds it again after a restart at another URL. */
class ServerConnection {
  readonly #options: WaitOptions
  #server: FoundServer | undefined
  #hasAnswered = false
  #awaySince: number | undefined

  constructor(options: WaitOptions) {
    this.#options = options
  }

  get server(): FoundServer {
    return this.#server!
  }

  get awayMs(): number {
    return this.#awaySince === undefined ? 0 : performance.now() - this.#awaySince
  }

  async open(): Promise<void> {
    this.#server = await this.#options.find()
  }

  /** Retries while the server does not answer. A server that never answered is not retried: its address may be wrong. */
  async call<T>(call: (server: FoundServer) => Promise<T>): Promise<T> {
    const { signal, patienceMs, find } = this.#options
    for (;;) {
      try {
        const answer = await call(this.server)
        this.#awaySince = undefined
        if (!this.#hasAnswered) this.#printStart()
        this.#hasAnswered = true
        return answer
      } catch (error) {
        signal.throwIfAborted()
        if (!this.#hasAnswered || !isAway(error)) throw error
        this.#awaySince ??= performance.now()
        if (this.awayMs > patienceMs) throw error
        await sleep(RETRY_MS, undefined, { signal })
        this.#server = await find().catch(() => this.server)
      }
    }
  }

  /** Without a terminal there are no progress bars. */
  #printStart(): void {
    const { ids, stream = process.stderr } = this.#options
    if (!stream.isTTY)
      stream.write(
        `${toVisibleLine(`Waiting for ${ids.length === 1 ? ids[0] : `${ids.length} tasks`} at ${this.server.url}.`)}\n`,
      )
  }
}

function isAway(error: unknown): boolean {
  return error instanceof RolloutError && error.retryable && /^(?:server|store)\./.test(error.code)
}
