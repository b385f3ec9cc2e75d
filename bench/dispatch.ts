import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { systemClock } from '../src/lib/clock.ts'
import { randomIds } from '../src/lib/random-ids.ts'
import { type Database, openDatabase } from '../src/store/database.ts'
import { createDispatch, type Dispatch } from '../src/store/dispatch.ts'
import { putNode } from '../src/store/dispatch/nodes.ts'
import { WORK_CHANNEL } from '../src/store/dispatch/work-channel.ts'
import { makeOutcome, makeRegistration, makeTask, toLease } from '../test/support/dispatch-desk.ts'
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
/** A node that is full takes one whenever one of its own has ended; one that begins takes many. */
const ROOM = [1, 16] as const

interface DispatchBench {
  enqueuedPerSecond: number
  /** Leased and accepted, by the number that is leased at a time. */
  donePerSecond: Record<(typeof ROOM)[number], number>
  wakeP50Ms: number
  wakeP99Ms: number
  /** By which the process grew while the queue went from 20k to 100k. */
  grownMb: { held: number; resident: number }
}

/** How many sessions go through the database, how soon a waiting node has new work, and what a long queue holds in memory. */
export async function benchDispatch({ long }: BenchOptions): Promise<Record<string, DispatchBench>> {
  const seconds = long ? 20 : 4
  const results: Record<string, DispatchBench> = {}
  const dir = await mkdtemp(join(tmpdir(), 'polar-bench-'))
  try {
    results['embedded'] = await measure(await openDatabase({ dir }), seconds)
  } finally {
    await rm(dir, { recursive: true, force: true })
  }
  const reason = whyNoPostgres()
  if (reason !== undefined) console.log(reason)
  else {
    await using postgres = await startPostgres({ fsync: true })
    results['PostgreSQL'] = await measure(await openDatabase({ url: await postgres.createDatabase('bench') }), seconds)
  }
  print(results)
  return results
}

async function measure(open: Database, seconds: number): Promise<DispatchBench> {
  await using database = open
  const dispatch = createDispatch({
    database,
    clock: systemClock,
    monotonic: () => performance.now(),
    ids: randomIds(Date.now),
  })
  for (let i = 0; i < NODES; i += 1) {
    await putNode(database.db, { registration: makeRegistration(`n${i}`), labels: [] }, Date.now())
  }
  const wakes = await measureWakes(database, dispatch)
  const begun = performance.now()
  await fill(dispatch, 'first', QUEUED)
  const enqueuedPerSecond = QUEUED / ((performance.now() - begun) / 1000)
  const donePerSecond = { 1: 0, 16: 0 }
  for (const room of ROOM) {
    donePerSecond[room] = await work(dispatch, room, seconds)
  }
  const before = await readHeldMemory()
  await fill(dispatch, 'more', MANY_QUEUED - QUEUED)
  const after = await readHeldMemory()
  return {
    enqueuedPerSecond,
    donePerSecond,
    wakeP50Ms: percentile(wakes, 50),
    wakeP99Ms: percentile(wakes, 99),
    grownMb: { held: (after.held - before.held) / 2 ** 20, resident: (after.resident - before.resident) / 2 ** 20 },
  }
}

async function fill(dispatch: Dispatch, name: string, sessions: number): Promise<void> {
  for (let done = 0; done < sessions; done += SAMPLES * TASKS_PER_SUBMIT) {
    const ids = Array.from({ length: TASKS_PER_SUBMIT }, (_, i) => `${name}-${done}-${i}`)
    await dispatch.enqueue(ids.map((id) => ({ task: makeTask(id, SAMPLES) })))
  }
}

/** Nodes that bring back at once what they are given. */
async function work(dispatch: Dispatch, freeSlots: number, seconds: number): Promise<number> {
  const begun = performance.now()
  const until = begun + seconds * 1000
  let done = 0
  const node = async (nodeId: string): Promise<void> => {
    while (performance.now() < until) {
      for (const leased of (await dispatch.lease(nodeId, { freeSlots })).orders) {
        const lease = toLease(leased)
        const digest = `${lease.sessionId}/${lease.attempt}`
        const answer = await dispatch.accept(
          makeOutcome(lease, undefined, { nodeId, taskId: leased.order.task.task_id }),
          {
            path: digest,
            digest,
            bytes: 1,
          },
        )
        if (answer.kind !== 'accepted') throw new Error(`a result was ${answer.kind}`)
        done += 1
      }
    }
  }
  await Promise.all(Array.from({ length: NODES }, (_, i) => node(`n${i}`)))
  return done / ((performance.now() - begun) / 1000)
}

/** From the submission to the order in hand, for a node that waits to be woken. */
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

function print(results: Record<string, DispatchBench>): void {
  const row = (name: string, show: (bench: DispatchBench) => string) => [name, ...Object.values(results).map(show)]
  printTable([
    ['20k queued, tasks of 8 samples, 20 nodes', ...Object.keys(results)],
    row('sessions submitted/s, 100 tasks at a time', (bench) => bench.enqueuedPerSecond.toFixed(0)),
    row('leased + accepted/s, one at a time', (bench) => bench.donePerSecond[1].toFixed(0)),
    row('leased + accepted/s, 16 at a time', (bench) => bench.donePerSecond[16].toFixed(0)),
    row('submit to order in hand, p50 ms', (bench) => bench.wakeP50Ms.toFixed(1)),
    row('submit to order in hand, p99 ms', (bench) => bench.wakeP99Ms.toFixed(1)),
    row('100k queued: heap grows by, MB', (bench) => bench.grownMb.held.toFixed(1)),
    row('100k queued: process grows by, MB', (bench) => bench.grownMb.resident.toFixed(1)),
  ])
}
