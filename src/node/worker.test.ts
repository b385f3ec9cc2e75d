import { mkdir, mkdtemp, readdir, realpath, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import fc from 'fast-check'
import pino from 'pino'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { FakeClock } from '../../test/support/fake-clock.ts'
import { FakeGateway, FakeNode, settleWithDisk, type FakeLife } from '../../test/support/worker-node.ts'
import { WorkerServer, type Fault } from '../../test/support/worker-server.ts'
import type { SessionOrder } from '../model/session-order.ts'
import { Worker, type WorkerOptions } from './worker.ts'
import { runs } from '../../test/support/runs.ts'

let scratch: string
beforeAll(async () => {
  scratch = await mkdtemp(join(await realpath(tmpdir()), 'polar-worker-'))
})
afterAll(() => rm(scratch, { recursive: true, force: true }))

const LEASE_MS = 60_000
const QUICK: FakeLife = { waitMs: 10, runMs: 1000, ending: 'ok' }
let worlds = 0

/** A server, a node and a worker with a fake clock. */
class World {
  readonly clock = new FakeClock(1_000_000, settleWithDisk)
  readonly server = new WorkerServer(this.clock, { leaseMs: LEASE_MS })
  readonly dir = join(scratch, `world-${worlds++}`)
  lifeOf: (order: SessionOrder) => FakeLife = () => QUICK
  readonly gateway = new FakeGateway()
  life = { isDead: false }
  node = this.#createNode()
  worker: Worker | undefined
  hasCrashed = false
  readonly #stopExpiring: () => void

  constructor() {
    let stop = (): void => {}
    const again = (): void => {
      this.server.expire()
      stop = this.clock.after(LEASE_MS / 10, again)
    }
    again()
    this.#stopExpiring = () => stop()
  }

  #createNode(): FakeNode {
    return new FakeNode(this.dir, this.clock, (order) => this.lifeOf(order))
  }

  async start(options: Partial<WorkerOptions> = {}): Promise<Worker> {
    await mkdir(this.dir, { recursive: true })
    const started = Worker.start({
      client: this.server.connect(this.life),
      node: this.node,
      gateway: this.gateway,
      nodeId: 'node-1',
      registration: {
        gateway_url: 'http://127.0.0.1:1',
        max_init_workers: 1,
        max_run_workers: 2,
        max_postrun_workers: 1,
        heartbeat_interval_seconds: 30,
      },
      labels: ['runtime:fake'],
      version: '0.0.0',
      retention: { sessions: 0 },
      minFreeMb: 0,
      logger: pino({ level: 'silent' }),
      clock: this.clock,
      monotonic: () => this.clock.now(),
      random: () => 0.5,
      ...options,
    })
    return (this.worker = await this.clock.run(started))
  }

  /** Kills the node process and creates its successor. */
  async crash(): Promise<void> {
    this.hasCrashed = true
    this.life.isDead = true
    this.node.isDead = true
    this.life = { isDead: false }
    this.node = this.#createNode()
    await FakeNode.recover(this.dir)
  }

  async until(isSo: () => boolean, what: string): Promise<void> {
    for (let steps = 0; !isSo(); steps++) {
      if (steps > 2000) throw new Error(`condition not reached: ${what}`)
      await this.clock.advance(500)
    }
  }

  /** Drains the worker, and checks that nothing is left. */
  async end(): Promise<void> {
    await this.clock.run(this.worker!.drain())
    this.#stopExpiring()
    expect(this.worker!.metrics).toMatchObject({ held: 0, undelivered: 0 })
    expect(this.node.sessions).toEqual([])
    await settleWithDisk()
    expect(await readdir(join(this.dir, 'sessions')).catch(() => [])).toEqual([])
    // A killed process never cleared its timers. Requests that are under way still reach the server.
    if (!this.hasCrashed) expect(this.clock.pending).toBe(this.server.onTheWay)
  }
}

test('a worker runs every leased session, delivers it once, and leaves no files', async () => {
  const world = new World()
  await world.start()
  world.server.submit('a', 'b', 'c', 'd', 'e', 'f', 'g', 'h')
  await world.until(() => world.server.isDone, 'all are done')
  await world.end()
  expect([...world.server.ends.values()]).toEqual(Array.from({ length: 8 }, () => ['accepted']))
  expect(world.server.results.get('a')).toMatchObject({ session_id: 'a', status: 'COMPLETED' })
  // Two in the init stage or waiting for it, one ready, two running.
  expect(world.node.most).toBeLessThanOrEqual(5)
  expect(world.server.requests.at(-1)).toBe('POST /nodes/node-1/leave')
})

test('a worker applies the policy state before it leases sessions, and confirms each later state', async () => {
  const world = new World()
  const { server, gateway } = world
  server.setPolicy({ change: 4, version: 7, paused: true, mode: 'hold' })
  gateway.failures = 2
  let atFirstSession: string[] | undefined
  world.lifeOf = () => {
    atFirstSession ??= [...gateway.changes]
    return QUICK
  }
  server.submit('a')
  await world.start()
  await world.until(() => server.isDone && server.confirmed !== undefined, 'the session is done')
  expect(atFirstSession).toEqual(['pause', '7'])
  expect(server.confirmed).toEqual({ change: 4, version: 7, in_flight: 0 })
  server.setPolicy({ change: 5, version: 8, paused: false, mode: 'hold' })
  await world.until(() => server.confirmed?.change === 5, 'the state is confirmed')
  expect(gateway.changes.slice(2)).toEqual(['8', 'resume'])
  await world.end()
})

test('a draining gateway is confirmed when its calls have ended', async () => {
  const world = new World()
  const { server, gateway } = world
  server.setPolicy({ change: 0, version: null, paused: false, mode: 'drain' })
  gateway.inFlight = 3
  await world.start()
  server.setPolicy({ change: 1, version: null, paused: true, mode: 'drain' })
  await world.until(() => server.confirmed?.change === 1, 'the state is confirmed')
  expect(server.confirmed).toEqual({ change: 1, version: null, in_flight: 3 })
  gateway.inFlight = 0
  await world.until(() => server.confirmed?.in_flight === 0, 'the calls have ended')
  expect(gateway.changes).toEqual(['resume', 'pause'])
  await world.end()
})

test('a paused node stays paused while the server is unreachable, and applies the state afterwards', async () => {
  const world = new World()
  const { server, gateway } = world
  server.setPolicy({ change: 1, version: 1, paused: true, mode: 'drain' })
  await world.start()
  server.isAway = true
  await world.clock.advance(3 * LEASE_MS)
  expect(gateway.changes).toEqual(['pause', '1'])
  // Another database: its counter is lower, and the node must join again.
  server.node = undefined
  server.policy = { change: 0, version: 2, paused: false, mode: 'drain' }
  server.isAway = false
  await world.until(() => gateway.changes.includes('resume'), 'the state is applied')
  expect(gateway.changes.slice(2)).toEqual(['2', 'resume'])
  await world.end()
})

test('a cancelled session is stopped at the next renewal, and its result is not delivered', async () => {
  const world = new World()
  world.lifeOf = () => ({ waitMs: 0, runMs: 500_000, ending: 'ok' })
  await world.start()
  world.server.submit('a')
  await world.until(() => world.node.began.length === 1, 'it runs')
  world.server.cancel('a')
  await world.clock.advance(LEASE_MS / 3 + 1000)
  expect(world.node.cancelled).toEqual(['a/1'])
  await world.end()
  expect(world.server.results.size).toBe(0)
  expect(world.server.refusals).toEqual([])
})

test('while the server is unreachable sessions go on; their results are delivered later, the oldest first', async () => {
  const world = new World()
  world.lifeOf = ({ sessionId }) => ({ waitMs: 0, runMs: sessionId === 'a' ? 9000 : 3000, ending: 'ok' })
  await world.start({ uploads: { atOnce: 1 } })
  world.server.submit('a', 'b', 'c')
  await world.until(() => world.node.began.length === 3, 'they run')
  world.server.isAway = true
  await world.clock.advance(20_000)
  expect(world.worker!.metrics).toMatchObject({ held: 3, undelivered: 3, isServerAway: true })
  world.server.isAway = false
  await world.until(() => world.server.isDone, 'they are delivered')
  const completions = [...world.server.ends.keys()]
  expect(completions.at(-1)).toBe('a/1')
  await world.end()
})

test('a running session whose lease expired is finished and delivered, and the server rejects it', async () => {
  const world = new World()
  world.lifeOf = ({ attempt }) => ({ waitMs: 0, runMs: attempt === 1 ? 3 * LEASE_MS : 1000, ending: 'ok' })
  await world.start()
  world.server.submit('a')
  await world.until(() => world.node.began.length === 1, 'it runs')
  world.server.isAway = true
  await world.clock.advance(2 * LEASE_MS)
  expect(world.server.ends.get('a/1')).toEqual(['lost'])
  expect(world.node.cancelled).toEqual([])
  // The node leases the session again, as another attempt, while the first attempt still runs.
  world.server.isAway = false
  await world.until(() => world.server.isDone, 'it is done')
  expect(new Set(world.node.cancelled)).toEqual(new Set(['a/1']))
  expect(world.server.ends.get('a/2')).toEqual(['accepted'])
  expect(world.server.results.get('a')!.metadata.polar.attempt).toBe(2)
  await world.end()
})

test('a session that did not start is dropped when its lease has expired; a running session is not', async () => {
  const world = new World()
  world.lifeOf = ({ sessionId }) => ({
    waitMs: sessionId === 'waits' ? 4 * LEASE_MS : 0,
    runMs: 4 * LEASE_MS,
    ending: 'ok',
  })
  await world.start()
  world.server.submit('runs', 'waits')
  await world.until(() => world.node.began.length === 1, 'one runs')
  world.server.isAway = true
  await world.clock.advance(LEASE_MS)
  expect(world.node.cancelled).toEqual([])
  await world.clock.advance(LEASE_MS)
  expect(world.node.cancelled).toEqual(['waits/1'])
  world.lifeOf = () => QUICK
  world.server.isAway = false
  await world.until(() => world.server.isDone, 'both are done')
  await world.end()
})

test('a result that the server rejects for good blocks no other result, and is reported as lost', async () => {
  const world = new World()
  await world.start({ uploads: { atOnce: 1 } })
  world.server.poisoned.add('a')
  world.server.submit('a', 'b', 'c')
  await world.until(() => world.server.ends.has('b/1') && world.server.ends.has('c/1'), 'the others are done')
  await world.until(() => world.server.ends.has('a/1'), 'it is given up')
  expect(world.server.ends.get('a/1')).toEqual(['refilled'])
  world.server.poisoned.clear()
  await world.until(() => world.server.isDone, 'it is made again')
  expect(world.server.ends.get('a/2')).toEqual(['accepted'])
  await world.end()
})

test('a short result is sent with its completion, or uploaded if the server does not support that', async () => {
  const world = new World()
  const uploads = () => world.server.requests.filter((request) => request.endsWith('/uploads')).length
  await world.start()
  world.server.submit('a')
  await world.until(() => world.server.isDone, 'it is done')
  expect(uploads()).toBe(0)
  // The server is replaced by an earlier version that the node has not joined.
  world.server.inlineBytes = undefined
  world.server.submit('b')
  await world.until(() => world.server.isDone, 'it is done again')
  expect(uploads()).toBe(1)
  await world.crash()
  await world.start()
  world.server.submit('c')
  await world.until(() => world.server.isDone, 'it is done by one that joined it')
  expect(uploads()).toBe(2)
  expect(world.server.requests.filter((request) => request.endsWith('/complete'))).toHaveLength(4)
  expect([...world.server.ends.values()]).toEqual([['accepted'], ['accepted'], ['accepted']])
  await world.end()
})

test('a proxy that answers 404 to every request does not lose a result', async () => {
  const world = new World()
  await world.start()
  world.server.submit('a')
  await world.until(() => world.node.began.length === 1, 'it runs')
  world.server.faults = Array.from({ length: 30 }, () => 'foreign-404')
  await world.clock.advance(5000)
  expect(world.worker!.metrics.undelivered).toBe(1)
  world.server.faults = []
  await world.until(() => world.server.isDone, 'it is delivered')
  expect(world.server.ends.get('a/1')).toEqual(['accepted'])
  await world.end()
})

test('after a crash a node holds its finished sessions, and no others', async () => {
  const world = new World()
  world.lifeOf = ({ sessionId }) => ({ waitMs: 0, runMs: sessionId === 'long' ? 50_000 : 2000, ending: 'ok' })
  await world.start()
  world.server.submit('short', 'long')
  await world.until(() => world.node.began.length === 2, 'both run')
  world.server.isAway = true
  await world.clock.advance(3000)
  expect(world.worker!.metrics.undelivered).toBe(1)
  await world.crash()
  world.server.isAway = false
  await world.start()
  expect(world.server.ends.get('long/1')).toEqual(['lost'])
  await world.until(() => world.server.isDone, 'both are done')
  expect(world.server.ends.get('short/1')).toEqual(['accepted'])
  expect(world.server.ends.get('long/2')).toEqual(['accepted'])
  await world.end()
})

test('release() releases unfinished sessions at once, and leaves', async () => {
  const world = new World()
  world.lifeOf = () => ({ waitMs: 0, runMs: 500_000, ending: 'ok' })
  const worker = await world.start()
  world.server.submit('a', 'b')
  await world.until(() => world.node.began.length === 2, 'they run')
  const before = world.clock.now()
  await world.clock.run(worker.release())
  expect(world.clock.now() - before).toBeLessThan(1000)
  expect(world.server.ends).toEqual(
    new Map([
      ['a/1', ['released']],
      ['b/1', ['released']],
    ]),
  )
  expect(world.server.node).toBeUndefined()
  await world.clock.run(worker.ended)
})

test('drain() leases nothing more, waits for its grace time, and releases the rest', async () => {
  const world = new World()
  world.lifeOf = ({ sessionId }) => ({ waitMs: 0, runMs: sessionId === 'a' ? 5000 : 500_000, ending: 'ok' })
  const worker = await world.start({ drainGraceMs: 30_000 })
  world.server.submit('a', 'b')
  await world.until(() => world.node.began.length === 2, 'they run')
  const before = world.clock.now()
  const drained = worker.drain()
  await world.clock.advance(10)
  world.server.submit('c')
  await world.clock.run(drained)
  expect(world.clock.now() - before).toBeLessThan(35_000)
  expect(world.server.ends).toEqual(
    new Map([
      ['a/1', ['accepted']],
      ['b/1', ['released']],
    ]),
  )
})

test('a node that the server drains finishes its sessions and does not join again', async () => {
  const world = new World()
  const worker = await world.start()
  world.server.submit('a')
  await world.until(() => world.node.began.length === 1, 'it runs')
  world.server.isDraining = true
  await world.clock.run(worker.ended)
  expect(world.server.ends).toEqual(new Map([['a/1', ['accepted']]]))
  expect(world.server.node).toBeUndefined()
})

test('a worker whose node id another process has joined with stops, and `ended` rejects', async () => {
  const world = new World()
  world.lifeOf = () => ({ waitMs: 0, runMs: 500_000, ending: 'ok' })
  const worker = await world.start()
  world.server.submit('a')
  await world.until(() => world.node.began.length === 1, 'it runs')
  world.server.node = { id: 'node-1', boot: 'another' }
  await expect(world.clock.run(worker.ended)).rejects.toMatchObject({ code: 'request.stale' })
  expect(world.node.cancelled).toEqual(['a/1'])
})

test('a worker leases nothing while disk space is low', async () => {
  const world = new World()
  const worker = await world.start({ minFreeMb: 2 ** 40 })
  world.server.submit('a')
  await world.clock.advance(60_000)
  expect(world.node.began).toEqual([])
  expect(worker.metrics).toMatchObject({ isDiskLow: true })
})

test('a delayed join request of a dead process does not evict its successor', async () => {
  const world = new World()
  world.server.faults = ['slow']
  world.start().catch(() => {})
  await world.clock.advance(1000)
  await world.crash()
  await world.start()
  world.server.submit('a')
  await world.until(() => world.server.isDone, 'the successor works')
  await world.clock.advance(10_000)
  expect(world.server.onTheWay).toBe(0)
  world.server.submit('b')
  await world.until(() => world.server.isDone, 'it still does')
  await world.end()
})

test('start() rejects without a retry if the server refuses the token', async () => {
  const world = new World()
  const client = world.server.connect()
  const refuse = async (): Promise<never> => {
    const { RolloutError } = await import('../model/failure.ts')
    throw new RolloutError('request.unauthorized', 'No.')
  }
  await expect(world.start({ client: { ...client, joinNode: refuse } })).rejects.toMatchObject({
    code: 'request.unauthorized',
  })
})

const fault = fc.constantFrom<Fault>(
  'none',
  'none',
  'none',
  'cut-before',
  'cut-after',
  'twice',
  'unavailable',
  'foreign-404',
  'slow',
  'silent',
)

const events = fc.constantFrom('fault', 'outage', 'cancel', 'crash', 'other server', 'nothing')

test('every attempt ends exactly once and no slot is lost, whatever requests fail', { timeout: 240_000 }, async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.array(fault, { maxLength: 60 }),
      fc.array(fc.record({ event: events, afterMs: fc.integer({ min: 100, max: 40_000 }) }), { maxLength: 6 }),
      fc.array(
        fc.record({ waitMs: fc.integer({ min: 0, max: 20_000 }), runMs: fc.integer({ min: 0, max: 150_000 }) }),
        {
          minLength: 1,
          maxLength: 9,
        },
      ),
      async (faults, happenings, lives) => {
        const world = new World()
        const ids = lives.map((_, index) => `s${index}`)
        world.lifeOf = ({ sessionId, attempt }) => {
          const life = lives[Number(sessionId.slice(1))]!
          // The first attempt of some sessions fails; later attempts are fast, so that the test ends.
          if (attempt > 1) return QUICK
          return { ...life, ending: life.runMs % 3 === 0 ? 'spoilt' : life.runMs % 3 === 1 ? 'ok' : 'failed' }
        }
        await world.start()
        world.server.submit(...ids)
        world.server.faults = [...faults]
        for (const [index, { event, afterMs }] of happenings.entries()) {
          await world.clock.advance(afterMs)
          switch (event) {
            case 'fault':
              world.server.faults.push('cut-after', 'cut-after')
              break
            case 'outage':
              world.server.isAway = true
              await world.clock.advance(3 * afterMs)
              world.server.isAway = false
              break
            case 'cancel':
              world.server.cancel(ids[index % ids.length]!)
              break
            case 'crash':
              await world.crash()
              await world.start()
              break
            case 'other server':
              world.server.inlineBytes = world.server.inlineBytes === undefined ? 64 * 1024 : undefined
              break
            case 'nothing':
              break
          }
        }
        await world.until(() => world.server.isDone, 'all are done')
        expect(world.node.most).toBeLessThanOrEqual(5)
        await world.end()
        for (const [key, ends] of world.server.ends) expect([key, ends.length]).toEqual([key, 1])
        for (const { id, accepted, isCancelled } of world.server.sessions.values()) {
          if (isCancelled) continue
          expect(world.server.results.get(id)).toMatchObject({
            session_id: id,
            metadata: { polar: { attempt: accepted!.attempt } },
          })
          const lastEnds = [...world.server.ends].filter(([key]) => key.startsWith(`${id}/`))
          expect(lastEnds.filter(([, [end]]) => end === 'accepted')).toHaveLength(1)
        }
      },
    ),
    { numRuns: runs(12), endOnFailure: true },
  )
})
