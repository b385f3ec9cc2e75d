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
  /** Asked again when the server was away: it may have come back somewhere else. */
  find: () => Promise<FoundServer>
  /** How long the server may be away. */
  patienceMs: number
  signal: AbortSignal
  onEnd?: (task: TaskSummary) => void
  stream?: Pick<NodeJS.WriteStream, 'isTTY' | 'write' | 'columns'>
}

/** Tasks that are asked about at a time, and bars that fit on a screen. */
const AT_ONCE = 16
const POLL_SECONDS = 20
const REFRESH_MS = 2000
const AWAY_MS = 1000

interface Progress {
  id: string
  task?: TaskSummary
  running: number
  isOver: boolean
}

/** Their summaries once all of them are over, whatever becomes of the server meanwhile. */
export async function waitForTasks(options: WaitOptions): Promise<TaskSummary[]> {
  const { ids, signal, stream = process.stderr } = options
  const all: Progress[] = ids.map((id) => ({ id, running: 0, isOver: false }))
  const line = new ServerLine(options)
  await line.open()
  const limit = createLimit(AT_ONCE)
  using _screen = createScreen(() => render(all, line.awayMs), stream)
  const ended = new AbortController()
  const refreshing = stream.isTTY ? refresh(all, line, AbortSignal.any([signal, ended.signal])) : undefined
  try {
    return await Promise.all(all.map((one) => limit(() => follow(one, line, options))))
  } finally {
    ended.abort()
    await refreshing
  }
}

async function follow(one: Progress, line: ServerLine, { signal, onEnd }: WaitOptions): Promise<TaskSummary> {
  const params = { task_id: one.id }
  // The first answer comes at once: from then on the server is known to be one that is worth waiting for.
  for (let known = 0, wait = 0; ; wait = POLL_SECONDS) {
    const { status, completed_sessions: completed } = await line.ask(({ client }) =>
      client.getTask({
        params,
        query: { wait, known_completed: known, results: 'reference' },
        signal,
      }),
    )
    known = completed
    if (status === 'running' || status === 'cancelling') continue
    const task = await line.ask(({ client }) => findTask(client, one.id, signal))
    one.task = task
    one.isOver = true
    onEnd?.(task)
    return task
  }
}

/** For the eye only: what fails here is tried again by whoever waits. */
async function refresh(all: readonly Progress[], line: ServerLine, signal: AbortSignal): Promise<void> {
  while (!signal.aborted) {
    for (const one of all.filter(({ isOver }) => !isOver).slice(0, AT_ONCE)) {
      try {
        const { client } = line.server
        one.task = await findTask(client, one.id, signal)
        const query = { status: 'RUNNING' as const, limit: 1000 }
        one.running = (await client.listTaskSessions({ params: { task_id: one.id }, query, signal })).sessions.length
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
  const lines = (all.length <= AT_ONCE ? all : open.slice(0, AT_ONCE)).map(({ id: given, task, running, isOver }) => {
    const id = toVisibleLine(given)
    const name = (id.length > width ? `${id.slice(0, width - 1)}…` : id).padEnd(width)
    if (task === undefined) return `  ${name}  ${renderBar(0, 0)}`
    const reward = task.mean_reward === null ? '' : `  mean reward ${formatReward(task.mean_reward)}`
    const now = isOver ? `  ${task.status}` : running > 0 ? `  ${running} running` : '  waiting'
    const failed = task.errored_sessions > 0 ? `  ${task.errored_sessions} failed` : ''
    return `  ${name}  ${renderBar(task.completed_sessions, task.num_samples)}${now}${failed}${reward}`
  })
  if (all.length > AT_ONCE) lines.push(`  ${'tasks'.padEnd(width)}  ${renderBar(all.length - open.length, all.length)}`)
  if (awayMs > 0) lines.push(`  The server is away for ${Math.round(awayMs / 1000)} s; waiting for it.`)
  return lines
}

/** The server, also when it is another one by now. */
class ServerLine {
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

  /** A server that never answered is not waited for: its address may be wrong. */
  async ask<T>(call: (server: FoundServer) => Promise<T>): Promise<T> {
    const { signal, patienceMs, find } = this.#options
    for (;;) {
      try {
        const answer = await call(this.server)
        this.#awaySince = undefined
        if (!this.#hasAnswered) this.#greet()
        this.#hasAnswered = true
        return answer
      } catch (error) {
        signal.throwIfAborted()
        if (!this.#hasAnswered || !isAway(error)) throw error
        this.#awaySince ??= performance.now()
        if (this.awayMs > patienceMs) throw error
        await sleep(AWAY_MS, undefined, { signal })
        this.#server = await find().catch(() => this.server)
      }
    }
  }

  /** Where there are no bars. */
  #greet(): void {
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
