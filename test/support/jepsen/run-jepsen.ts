import { mkdir } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Postgres } from '../postgres.ts'
import { openCallbacks } from './callbacks.ts'
import { checkHistory } from './check-history.ts'
import { Cluster, TOKENS } from './cluster.ts'
import type { Violation } from './facts.ts'
import { Forger } from './forger.ts'
import { type FinalState, type History, HistoryLog, monotonic } from './history.ts'
import { ROUNDS, injectFaults } from './nemesis.ts'
import { planTasks, type TrainerPlan } from './plan.ts'
import { createChance } from './random.ts'
import { countWaiting, readAllEvents, readDatabase, readTasks } from './read-final.ts'
import { summarize } from './summarize.ts'
import { findLeft, findFolders, MARKER } from './sweep.ts'
import { Trainer } from './trainer.ts'

export interface JepsenOptions {
  dir: string
  seed: number
  sessions: number
  leaseMs: number
  postgres?: { cluster: Postgres; url: string }
  /** Runtimes to use. */
  runtimes: readonly string[]
  /** Time limit for all tasks to end after the last fault. */
  settleMs: number
}

export interface JepsenRun {
  history: History
  violations: Violation[]
  historyFile: string
  /** Counts and durations, for people. */
  summary: Record<string, unknown>
}

const NODES = 3

/** Runs tasks during faults, waits for their end, and checks the history. */
export async function runJepsen(options: JepsenOptions): Promise<JepsenRun> {
  const { dir, seed, settleMs } = options
  await mkdir(dir, { recursive: true })
  const log = new HistoryLog(join(dir, 'history.jsonl'))
  log.write({ seed, options: { ...options, postgres: options.postgres?.url } })
  const chance = createChance(seed)
  const run = `${process.pid}-${seed}`
  const times = { begin: monotonic(), up: 0, healed: 0, settled: 0, drained: 0, checked: 0 }
  await using owned = new AsyncDisposableStack()
  const cluster = owned.use(await Cluster.start({ ...options, run, nodes: NODES, log, chance: chance.fork() }))
  const calm = new AbortController()
  owned.defer(() => calm.abort())
  const callbacks = owned.use(await openCallbacks(log, chance.fork(), calm.signal))
  times.up = monotonic()
  const { graderUrl } = cluster
  const env = { [MARKER]: run }
  const plans = planTasks({ ...options, callbackUrl: callbacks.url, graderUrl, env, chance: chance.fork() })

  const over = new AbortController()
  owned.defer(() => over.abort(new Error('the run is over')))
  const trainer = new Trainer({ serverUrl: cluster.serverUrl, token: TOKENS.trainer, log })
  const listening = settled(trainer.listen(over.signal))
  const rounds = new Rounds()
  const working = Promise.allSettled(
    plans.map(async (plan, place) => {
      await rounds.reached(Math.floor((place / plans.length) * ROUNDS), over.signal)
      await trainer.look(plan, over.signal)
    }),
  )
  const forger = new Forger({ ...options, cluster, token: TOKENS.node, log, chance: chance.fork() })
  const forging = settled(forger.work(calm.signal))

  await injectFaults(cluster, chance.fork(), (round) => rounds.reach(round))
  times.healed = monotonic()
  calm.abort()
  await forging
  const timer = setTimeout(() => over.abort(new Error('not over in time')), settleMs)
  const ends = await working
  clearTimeout(timer)
  times.settled = monotonic()
  await Promise.all(cluster.nodes.map(({ program }) => program.stop(settleMs)))
  times.drained = monotonic()

  const reader = { serverUrl: cluster.serverUrl, token: TOKENS.trainer, filesDir: cluster.filesDir }
  const left = [...findLeft(run, dir, cluster.server.pid), ...cluster.nodes.flatMap(({ home }) => findFolders(home))]
  const tasks = await readTasks(toIds(plans), reader)
  await waitFor(async () => (await countWaiting(reader)) === 0, settleMs)
  const replayed = await readAllEvents(reader)
  await waitFor(() => trainer.heard.length >= replayed.length, 5000)
  over.abort(new Error('the run is over'))
  await listening
  await cluster.server.stop(settleMs)
  const final: FinalState = {
    tasks: tasks.map((task) => {
      const followed = trainer.followed.get(task.taskId)
      return followed === undefined ? task : { ...task, followed }
    }),
    events: { live: trainer.heard, replayed },
    database: await readDatabase(cluster.database),
    unfinished: ends.flatMap((end, place) =>
      end.status === 'fulfilled' ? [] : [`${plans[place]?.taskId}: ${String(end.reason)}`],
    ),
    crashes: cluster.crashes,
    left,
  }
  log.write({ plans, final })
  const history: History = { plans, entries: log.entries, final }
  const violations = checkHistory(history)
  times.checked = monotonic()
  const network = cluster.whyShared ?? 'namespaces'
  const summary = { seed, network, ...summarize(history, times), forged: Object.fromEntries(forger.tried) }
  log.write({ summary, violations })
  return { history, violations, historyFile: log.path, summary }
}

/** Distributes the tasks over the rounds, so that every round affects running tasks. */
class Rounds {
  readonly #gates = Array.from({ length: ROUNDS }, () => Promise.withResolvers<void>())

  reach(round: number): void {
    this.#gates[round]?.resolve()
  }

  async reached(round: number, signal: AbortSignal): Promise<void> {
    const { promise: aborted, reject } = Promise.withResolvers<never>()
    const stop = (): void => reject(signal.reason as Error)
    signal.addEventListener('abort', stop, { once: true })
    await Promise.race([this.#gates[round]?.promise, aborted])
    signal.removeEventListener('abort', stop)
  }
}

function toIds(plans: readonly TrainerPlan[]): string[] {
  return plans.map(({ taskId }) => taskId)
}

/** Ignores failures, because the history shows them. */
function settled(work: Promise<void>): Promise<void> {
  return work.catch(() => undefined)
}

async function waitFor(isTrue: () => boolean | Promise<boolean>, timeoutMs: number): Promise<void> {
  const until = monotonic() + timeoutMs
  while (!(await isTrue()) && monotonic() < until) await sleep(100)
}
