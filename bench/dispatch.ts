/** `npm run bench -- dispatch`; `node bench/dispatch.ts [--long]` prints the table of docs/benchmarks.md. */
import { mkdtempDisposable } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { systemClock } from '../src/lib/async/clock.ts'
import { randomIds } from '../src/lib/random-ids.ts'
import { type Database, openDatabase } from '../src/store/database.ts'
import { Dispatch } from '../src/store/dispatch/port.ts'
import { openChanges } from '../src/store/dispatch/internal/changes.ts'
import { putNode } from '../src/store/dispatch/commands/nodes.ts'
import { putQuota } from '../src/store/dispatch/commands/put-quota.ts'
import { WORK_CHANNEL } from '../src/store/dispatch/internal/work-channel.ts'
import { DispatchDriver, makeOutcome, makeRegistration, makeTask, toLease } from '../test/support/dispatch-driver.ts'
import { startPostgres, whyNoPostgres } from '../test/support/postgres.ts'
import type { BenchOptions } from './run.ts'
import { readHeldMemory } from './support/memory.ts'
import { percentile } from './support/stats.ts'
import { printTable } from './support/table.ts'

const QUEUED = 20_000
const MANY_QUEUED = 100_000
const SAMPLES = 8
const TASKS_PER_SUBMIT = 100
const NODES = 20
const WAKES = 60
const HELD = 2000
const IMAGES = 200
/** Warm images of a node; with affinity most of its sessions use them. */
const WARM_IMAGES = 20

/** One load: the behaviour of nodes, and the owners of the sessions. */
interface Load {
  name: string
  /** Sessions per lease request: a full node requests one whenever a session has ended; a new node requests many. */
  room: number
  owners: number
  hasAffinity?: boolean
  /** Limit of running sessions of each owner. */
  maxRunning?: number
}

const LOADS: readonly Load[] = [
  { name: 'one at a time', room: 1, owners: 1 },
  { name: '16 at a time', room: 16, owners: 1 },
  { name: 'one at a time, nodes prefer warm images', room: 1, owners: 1, hasAffinity: true },
  { name: 'one at a time, of five owners', room: 1, owners: 5 },
  { name: 'one at a time, of five owners with a limit of running sessions', room: 1, owners: 5, maxRunning: 100 },
]

interface DispatchBench {
  enqueuedPerSecond: number
  /** Leased and accepted, by the name of the load. */
  donePerSecond: Record<string, number>
  /** Share of sessions on a warm node, with affinity and without. */
  warmShare: { chosen: number; byChance: number }
  /** Sessions whose lease was renewed, 100 to a call. */
  renewedPerSecond: number
  /** Sessions of lost nodes that were queued again. */
  lostPerSecond: number
  wakeP50Ms: number
  wakeP99Ms: number
  /** Growth of the process while the queue grew from 20k to 100k. */
  grownMb: { held: number; resident: number }
}

/** Measures sessions per second, the time until a waiting node has a session, and the memory of a long queue. */
export async function benchDispatch({ long }: Pick<BenchOptions, 'long'>): Promise<Record<string, DispatchBench>> {
  const results = await measureAll(long ? 20 : 4)
  printTable(toRows(results))
  return results
}

async function measureAll(seconds: number): Promise<Record<string, DispatchBench>> {
  const results: Record<string, DispatchBench> = {}
  await using scratch = await mkdtempDisposable(join(tmpdir(), 'polar-bench-'))
  results['embedded'] = await measure(await openDatabase({ dir: scratch.path }), seconds)
  const reason = whyNoPostgres()
  if (reason !== undefined) console.error(reason)
  else {
    await using postgres = await startPostgres({ fsync: true })
    results['PostgreSQL'] = await measure(await openDatabase({ url: await postgres.createDatabase('bench') }), seconds)
  }
  return results
}

async function measure(open: Database, seconds: number): Promise<DispatchBench> {
  await using database = open
  await using changes = await openChanges(database)
  const deps = { database, changes, clock: systemClock, monotonic: () => performance.now(), ids: randomIds(Date.now) }
  const dispatch = new Dispatch(deps)
  await clear(database)
  const wakes = await measureWakes(database, dispatch)
  const donePerSecond: Record<string, number> = {}
  let enqueuedPerSecond = 0
  const warmShare = { chosen: 0, byChance: 0 }
  for (const load of LOADS) {
    await clear(database)
    const begun = performance.now()
    await fill(dispatch, load.owners, QUEUED)
    enqueuedPerSecond ||= QUEUED / ((performance.now() - begun) / 1000)
    if (load.maxRunning !== undefined) {
      for (let owner = 0; owner < load.owners; owner += 1) {
        await putQuota(database.db, `o${owner}`, { maxQueued: null, maxRunning: load.maxRunning })
      }
    }
    const { perSecond, warm } = await work(dispatch, load, seconds)
    donePerSecond[load.name] = perSecond
    if (load.hasAffinity) warmShare.chosen = warm
    else if (load === LOADS[0]) warmShare.byChance = warm
  }
  await clear(database)
  const kept = await measureLeases(dispatch, new Dispatch({ ...deps, ...stillClock() }))
  await clear(database)
  await fill(dispatch, 1, QUEUED)
  const before = await readHeldMemory()
  await fill(dispatch, 1, MANY_QUEUED - QUEUED, 'more')
  const after = await readHeldMemory()
  return {
    enqueuedPerSecond,
    donePerSecond,
    warmShare,
    ...kept,
    wakeP50Ms: percentile(wakes, 50),
    wakeP99Ms: percentile(wakes, 99),
    grownMb: { held: (after.held - before.held) / 2 ** 20, resident: (after.resident - before.resident) / 2 ** 20 },
  }
}

/** A dispatch whose leases expire after a few checks. */
function stillClock(): { monotonic: () => number; leaseMs: number } {
  let at = 0
  return { leaseMs: 3000, monotonic: () => (at += 1000) }
}

async function clear(database: Database): Promise<void> {
  await new DispatchDriver(database).clear()
  for (let i = 0; i < NODES; i += 1) {
    await putNode(database.db, { registration: makeRegistration(`n${i}`), labels: [] }, Date.now())
  }
}

async function fill(dispatch: Dispatch, owners: number, sessions: number, name = 'first'): Promise<void> {
  for (let done = 0, batch = 0; done < sessions; done += SAMPLES * TASKS_PER_SUBMIT, batch += 1) {
    const submissions = Array.from({ length: TASKS_PER_SUBMIT }, (_, i) => {
      const image = `image:${(batch * TASKS_PER_SUBMIT + i) % IMAGES}`
      return { task: makeTask(`${name}-${done}-${i}`, SAMPLES, { metadata: { image } }), affinity: [image] }
    })
    await dispatch.enqueue(submissions, { owner: `o${batch % owners}` })
  }
}

/** Nodes that complete each leased session at once. */
async function work(
  dispatch: Dispatch,
  { room, hasAffinity }: Load,
  seconds: number,
): Promise<{ perSecond: number; warm: number }> {
  const begun = performance.now()
  const until = begun + seconds * 1000
  let done = 0
  let warm = 0
  const node = async (nodeId: string): Promise<void> => {
    let images: string[] = []
    while (performance.now() < until) {
      const { orders } = await dispatch.lease(nodeId, { freeSlots: room, ...(hasAffinity && { affinity: images }) })
      // The queue is empty before the end of the measurement.
      if (orders.length === 0) return
      for (const leased of orders) {
        const { task } = leased.order
        const image = String(task.metadata['image'])
        if (images.includes(image)) warm += 1
        images = [image, ...images.filter((each) => each !== image)].slice(0, WARM_IMAGES)
        const lease = toLease(leased)
        const digest = `${lease.sessionId}/${lease.attempt}`
        const outcome = makeOutcome(lease, undefined, { nodeId, taskId: task.task_id })
        const answer = await dispatch.accept(outcome, { path: digest, digest, bytes: 1 })
        if (answer.kind !== 'accepted') throw new Error(`a result was ${answer.kind}`)
        done += 1
      }
    }
  }
  await Promise.all(Array.from({ length: NODES }, (_, i) => node(`n${i}`)))
  return { perSecond: done / ((performance.now() - begun) / 1000), warm: warm / done }
}

/** Nodes with a hundred leases each renew them; then they stop. */
async function measureLeases(
  dispatch: Dispatch,
  watching: Dispatch,
): Promise<{ renewedPerSecond: number; lostPerSecond: number }> {
  await fill(dispatch, 1, HELD)
  const held = new Map<string, ReturnType<typeof toLease>[]>()
  for (let i = 0; i < NODES; i += 1) {
    const { orders } = await dispatch.lease(`n${i}`, { freeSlots: HELD / NODES })
    held.set(`n${i}`, orders.map(toLease))
  }
  const begun = performance.now()
  for (const status of ['INITIALIZING', 'RUNNING', 'RUNNING', 'RUNNING'] as const) {
    await Promise.all(
      [...held].map(([nodeId, leases]) =>
        dispatch.renew(
          nodeId,
          leases.map((lease) => ({ ...lease, status, progress: { calls: 1, tokens: 100 } })),
        ),
      ),
    )
  }
  const renewedPerSecond = (4 * HELD) / ((performance.now() - begun) / 1000)
  for (;;) {
    const looked = performance.now()
    const lost = await watching.expire()
    if (lost > 0) return { renewedPerSecond, lostPerSecond: lost / ((performance.now() - looked) / 1000) }
  }
}

/** Measures the time from submit to lease, for a waiting node. */
async function measureWakes(database: Database, dispatch: Dispatch): Promise<number[]> {
  let wake = (): void => undefined
  const stop = await database.listen(WORK_CHANNEL, () => wake())
  const waits: number[] = []
  for (let i = 0; i < WAKES; i += 1) {
    const woken = new Promise<void>((resolve) => (wake = resolve))
    const begun = performance.now()
    await Promise.all([
      dispatch.enqueue([{ task: makeTask(`wake-${i}`, 1) }]),
      woken.then(async () => {
        const { orders: leased } = await dispatch.lease('n0', { freeSlots: 1 })
        waits.push(performance.now() - begun)
        for (const each of leased) await dispatch.accept(makeOutcome(toLease(each), undefined, { nodeId: 'n0' }))
      }),
    ])
  }
  await stop()
  return waits
}

function toRows(results: Record<string, DispatchBench>): string[][] {
  const row = (name: string, show: (bench: DispatchBench) => string) => [name, ...Object.values(results).map(show)]
  const percent = (share: number): string => `${(share * 100).toFixed(0)}%`
  return [
    ['20k queued, tasks of 8 samples, 20 nodes', ...Object.keys(results)],
    row('sessions submitted/s, 100 tasks at a time', (bench) => bench.enqueuedPerSecond.toFixed(0)),
    ...LOADS.map(({ name }) => row(`leased + accepted/s, ${name}`, (bench) => bench.donePerSecond[name]!.toFixed(0))),
    row('share of sessions on a warm node, with affinity', (bench) => percent(bench.warmShare.chosen)),
    row('share of sessions on a warm node, without', (bench) => percent(bench.warmShare.byChance)),
    row('sessions renewed/s, 100 per call', (bench) => bench.renewedPerSecond.toFixed(0)),
    row('sessions of lost nodes queued again/s', (bench) => bench.lostPerSecond.toFixed(0)),
    row('submit to lease, p50 ms', (bench) => bench.wakeP50Ms.toFixed(1)),
    row('submit to lease, p99 ms', (bench) => bench.wakeP99Ms.toFixed(1)),
    row('100k queued: heap grows by, MB', (bench) => bench.grownMb.held.toFixed(1)),
    row('100k queued: process grows by, MB', (bench) => bench.grownMb.resident.toFixed(1)),
  ]
}

function toMarkdown([heading = [], ...body]: string[][]): string {
  const line = (cells: readonly string[]): string => `| ${cells.join(' | ')} |`
  const rule = line(heading.map((_, column) => (column === 0 ? '---' : '---:')))
  return [line(heading), rule, ...body.map(line)].join('\n')
}

if (import.meta.main) console.log(toMarkdown(toRows(await measureAll(process.argv.includes('--long') ? 20 : 4))))
