import { sql } from 'kysely'
import { beforeEach, describe, expect, test } from 'vitest'
import { NodeStageMetrics } from '../../../model/node.ts'
import {
  DispatchDriver,
  makeOutcome,
  makeRegistration,
  makeTask,
  toLease,
} from '../../../../test/support/dispatch-driver.ts'
import type { Database } from '../../database.ts'
import { drainNode } from '../commands/nodes.ts'
import { readEvents } from '../queries/events.ts'
import { findKnownFiles } from '../queries/known-files.ts'
import { findNode } from '../queries/nodes.ts'
import { countOpen, findArtifact, findSession, listArtifacts } from '../queries/sessions.ts'
import { findTask, listEndings } from '../queries/tasks.ts'
import type { Lease } from '../types.ts'

/** Joining, leasing, renewing, failures, results and affinity. */
export function describeNodes(open: () => Database): void {
  let database: Database
  let driver: DispatchDriver
  beforeEach(async () => {
    database = open()
    driver = new DispatchDriver(database)
    await driver.clear()
  })
  const join = (bootId: string, { holding = [], replaces }: { holding?: readonly Lease[]; replaces?: string } = {}) =>
    driver.dispatch.join({ registration: makeRegistration('n9'), labels: ['gpu'], bootId, replaces, holding })

  describe('joining', () => {
    test('a restarted node loses the attempts it does not hold; a node that rejoins with the same boot id keeps all', async () => {
      await join('boot1')
      await driver.submit('t', 3)
      const { orders } = await driver.dispatch.lease('n9', { freeSlots: 2, bootId: 'boot1' })
      const [a, b] = orders.map(toLease)
      expect(await join('boot1')).toEqual({ kind: 'joined', outcomes: [], lost: 0 })
      expect(await join('boot2', { holding: [a!], replaces: 'boot1' })).toEqual({
        kind: 'joined',
        outcomes: [{ ...a, kind: 'held' }],
        lost: 1,
      })
      expect(await findNode(database.db, 'n9')).toMatchObject({ bootId: 'boot2', labels: ['gpu'], leased: 1 })
      expect(await findSession(database.db, b!.sessionId)).toMatchObject({
        state: 'queued',
        attempts: [{ attempt: 1, ending: 'lost', nodeId: 'n9', failure: { code: 'session.node-lost' } }],
      })
    })

    test('a replaced process gets no lease, and cannot renew, release or leave', async () => {
      await join('old')
      await join('new', { replaces: 'old' })
      await driver.submit('t', 3)
      const held = (await driver.dispatch.lease('n9', { freeSlots: 1, bootId: 'new' })).orders.map(toLease)
      expect(await driver.dispatch.lease('n9', { freeSlots: 1, bootId: 'old', holding: [] })).toEqual({
        orders: [],
        node: 'replaced',
      })
      expect(await driver.dispatch.renew('n9', held, { bootId: 'old' })).toMatchObject({ node: 'replaced' })
      expect(await driver.dispatch.release('n9', held, 'old')).toEqual([])
      expect(await driver.dispatch.leave('n9', 'old')).toBeUndefined()
      expect(await driver.dispatch.renew('n9', held, { bootId: 'new' })).toEqual({
        outcomes: [{ ...held[0], kind: 'held' }],
        node: 'member',
      })
      expect(await driver.dispatch.leave('n9', 'new')).toBe(1)
      expect(await driver.dispatch.leave('n9', 'new')).toBe(0)
      expect(await countOpen(database.db)).toEqual({ queued: 3, leased: 0 })
      expect((await findTask(database.db, 't'))?.refills).toBe(0)
    })

    test('a delayed join of a dead process has no effect after its successor joined', async () => {
      await join('first')
      await join('second', { replaces: 'first' })
      await driver.submit('t', 1)
      const held = (await driver.dispatch.lease('n9', { freeSlots: 1, bootId: 'second' })).orders.map(toLease)
      expect(await join('first')).toEqual({ kind: 'taken', bootId: 'second' })
      expect(await join('never-heard-of')).toEqual({ kind: 'taken', bootId: 'second' })
      expect(await join('between', { replaces: 'first' })).toEqual({ kind: 'taken', bootId: 'second' })
      expect(await driver.dispatch.renew('n9', held, { bootId: 'second' })).toEqual({
        outcomes: [{ ...held[0], kind: 'held' }],
        node: 'member',
      })
    })

    test('of two concurrent joins the slower one gets `taken`', async () => {
      await join('before')
      const answers = await Promise.all(['a', 'b'].map((boot) => join(boot, { replaces: 'before' })))
      expect(answers.map(({ kind }) => kind).toSorted()).toEqual(['joined', 'taken'])
      const winner = answers[0]!.kind === 'joined' ? 'a' : 'b'
      expect(answers).toContainEqual({ kind: 'taken', bootId: winner })
      expect(await findNode(database.db, 'n9')).toMatchObject({ bootId: winner })
    })

    test('an unknown node gets no lease; a draining node is reported as draining', async () => {
      await driver.submit('t', 1)
      expect(await driver.dispatch.lease('nobody', { freeSlots: 1, labels: [] })).toEqual({
        orders: [],
        node: 'unknown',
      })
      expect(await driver.dispatch.renew('nobody', [])).toEqual({ outcomes: [], node: 'unknown' })
      await drainNode(database.db, 'n1')
      expect(await driver.dispatch.lease('n1', { freeSlots: 1 })).toEqual({ orders: [], node: 'draining' })
      expect(await driver.dispatch.renew('n1', [])).toEqual({ outcomes: [], node: 'draining' })
    })

    test('a lease request without labels uses those of the join', async () => {
      await join('boot')
      await driver.dispatch.enqueue([{ task: makeTask('t', 2), requires: ['gpu'] }])
      expect((await driver.dispatch.lease('n9', { freeSlots: 1, labels: [] })).orders).toEqual([])
      expect((await driver.dispatch.lease('n9', { freeSlots: 5 })).orders).toHaveLength(2)
    })
  })

  describe('leases whose response was lost', () => {
    test('are requeued by the next request that does not list them, without a failure', async () => {
      await driver.dispatch.enqueue([{ task: makeTask('t', 2), maxFailures: 1 }])
      const [kept] = await driver.take(1)
      const [lost] = await driver.take(1)
      const { orders } = await driver.dispatch.lease('n1', { freeSlots: 5, holding: [kept!] })
      expect(orders.map(toLease)).toEqual([{ ...lost, attempt: 2 }])
      expect(await driver.renew('n1', [kept!, lost!])).toMatchObject([{ kind: 'held' }, { kind: 'lost' }])
    })

    test('do not include renewed leases, even if a delayed request does not list them', async () => {
      await driver.submit('t', 1)
      const held = await driver.take(1)
      await driver.renew('n1', held)
      expect((await driver.dispatch.lease('n1', { freeSlots: 1, holding: [] })).orders).toEqual([])
      expect(await driver.renew('n1', held)).toMatchObject([{ kind: 'held' }])
    })
  })

  describe('renewing', () => {
    test('stores metrics, status and progress in one call, and writes an event for each change', async () => {
      await driver.submit('t', 1)
      const [lease] = await driver.take(1)
      const { next } = await readEvents(database.db, { limit: 100 })
      const metrics = NodeStageMetrics.parse({ run_inflight: 1 })
      const renewal = { ...lease!, status: 'RUNNING' as const, progress: { calls: 3, tokens: 812 } }
      driver.wall += 5
      await driver.dispatch.renew('n1', [renewal], { metrics })
      await driver.dispatch.renew('n1', [{ ...lease!, status: 'RUNNING' }])
      expect(await findNode(database.db, 'n1')).toMatchObject({ metrics, seenAt: driver.wall })
      expect(await findSession(database.db, lease!.sessionId)).toMatchObject({
        status: 'RUNNING',
        progress: { calls: 3, tokens: 812 },
        attempts: [{ attempt: 1, nodeId: 'n1' }],
      })
      const { events } = await readEvents(database.db, { after: next, limit: 100 })
      expect(events).toMatchObject([{ type: 'session.state_changed', data: { status: 'RUNNING', node_id: 'n1' } }])
    })
  })

  describe('failures', () => {
    test('a failed session is queued again after a growing delay; a lost one without delay', async () => {
      driver = new DispatchDriver(database, { restMs: 1000 })
      await driver.submit('t', 1)
      for (const [failure, restMs] of [1000, 4000].entries()) {
        const [lease] = await driver.take(1)
        expect(await driver.end(lease!, 'upstream.unreachable')).toMatchObject({ isRefilled: true })
        expect(await countOpen(database.db)).toEqual({ queued: 1, leased: 0 })
        // The first sweep starts the measurement.
        await driver.pass(1000)
        await driver.pass(restMs - 1000)
        expect(await driver.take(1), `failure ${failure + 1}`).toEqual([])
        await driver.pass(1000)
      }
      await driver.take(1)
      expect(await driver.pass(driver.leaseMs + 1000)).toBe(1)
      expect(await driver.take(1)).toMatchObject([{ attempt: 4 }])
    })

    test('a session in its retry delay can be cancelled', async () => {
      driver = new DispatchDriver(database, { restMs: 1000 })
      await driver.submit('t', 1)
      await driver.end((await driver.take(1))[0]!, 'runtime.gone')
      expect(await driver.dispatch.cancelTask('t')).toBe('cancelled')
      await driver.pass(9000)
      expect(await countOpen(database.db)).toEqual({ queued: 0, leased: 0 })
    })

    test('six hundred leases expire at once', async () => {
      await driver.dispatch.enqueue(Array.from({ length: 20 }, (_, i) => ({ task: makeTask(`t${i}`, 30) })))
      await driver.take(600)
      expect(await driver.pass(driver.leaseMs + 1000)).toBe(600)
      expect(await countOpen(database.db)).toEqual({ queued: 600, leased: 0 })
    })
  })

  describe('results and artifacts', () => {
    const reference = (path: string) => ({ path, storedPath: `files/${path}`, bytes: 3, digest: 'd', isCut: false })

    test('results and files of all attempts are kept; queries return those of the last', async () => {
      await driver.submit('t', 1)
      const [first] = await driver.take(1)
      await driver.end(first!, 'runtime.gone', {}, [reference('harness.log')])
      const [second] = await driver.take(1)
      await driver.end(second!, undefined, {}, [reference('b.log'), reference('a.log')])
      const { attempts } = (await findSession(database.db, first!.sessionId))!
      expect(attempts.map(({ result }) => result?.digest)).toEqual([`${first!.sessionId}-1`, `${first!.sessionId}-2`])
      expect((await listArtifacts(database.db, first!.sessionId)).map(({ path }) => path)).toEqual(['a.log', 'b.log'])
      expect(await findArtifact(database.db, first!.sessionId, 'a.log')).toEqual(reference('a.log'))
      expect(await findArtifact(database.db, first!.sessionId, 'harness.log')).toBeUndefined()
      const asked = ['files/harness.log', `results/${first!.sessionId}-1`, 'files/unknown']
      expect(await findKnownFiles(database.db, asked)).toEqual(new Set(asked.slice(0, 2)))
    })

    test('a file is known by its exact path, also if the session id contains dots', async () => {
      await driver.submit('t', 2)
      const [first, second] = await driver.take(2)
      const usual = `results/0a/${first!.sessionId}.1.json.zst`
      const other = `artifacts/ff/${first!.sessionId}.1.other/${'0'.repeat(64)}`
      const files = [{ path: 'a', storedPath: other, bytes: 1, digest: 'd', isCut: false }]
      await driver.dispatch.accept(makeOutcome(first!), { path: usual, digest: 'd', bytes: 1 }, files)
      const theirs = `results/0a/${second!.sessionId}.1.0123456789abcdef.json.zst`
      await driver.dispatch.accept(makeOutcome(second!), { path: theirs, digest: 'd', bytes: 1 })
      await sql`insert into sessions (id, task_id, sample, lane_id, priority, round, affinity, state, status)
        select 'a.b.2', 't', 2, lane_id, 0, 0, '[]', 'ended', 'ERROR' from sessions limit 1`.execute(database.db)
      const dotted = 'results/0a/a.b.2.1.json.zst'
      await sql`insert into results values ('a.b.2', 1, ${dotted}, 'd', 1)`.execute(database.db)
      const known = [usual, other, theirs, dotted]
      const unknown = [
        `results/0b/${first!.sessionId}.1.json.zst`,
        `results/0a/${first!.sessionId}.2.json.zst`,
        `results/0a/${second!.sessionId}.1.json.zst`,
        `artifacts/ff/${first!.sessionId}.1/a`,
        'results/0a/none',
      ]
      expect(await findKnownFiles(database.db, [...known, ...unknown])).toEqual(new Set(known))
    })

    test('endings keep their order and place, with or without a result', async () => {
      await driver.submit('t', 4)
      const [a, b] = await driver.take(2)
      await driver.end(b!, undefined, { grade: { outcome_reward: 0.5, metadata: {} } })
      await driver.dispatch.accept(makeOutcome(a!, undefined, { counts: undefined }))
      await driver.dispatch.cancelTask('t')
      const endings = await listEndings(database.db, 't', { limit: 9 })
      expect(endings.map(({ place, sessionId, status }) => [place, sessionId, status]).slice(0, 2)).toEqual([
        [1, b!.sessionId, 'COMPLETED'],
        [2, a!.sessionId, 'COMPLETED'],
      ])
      expect(endings.map(({ result }) => result !== undefined)).toEqual([true, false, false, false])
      expect(endings.slice(2).map(({ place, status, nodeId }) => [place, status, nodeId])).toEqual([
        [3, 'CANCELLED', null],
        [4, 'CANCELLED', null],
      ])
      expect(await findTask(database.db, 't')).toMatchObject({
        endings: 4,
        meanReward: 0.5,
        meanTraces: 1,
        meanCompletions: 1,
      })
    })
  })

  describe('nodes with affinity', () => {
    const fill = async (images: readonly string[], samples = 1) => {
      await driver.dispatch.enqueue(
        images.map((image, i) => ({ task: makeTask(`t${i}-${image}`, samples), affinity: [`image:${image}`, 'ws:x'] })),
      )
    }
    const imagesOf = async (freeSlots: number, affinity: readonly string[]) =>
      (await driver.orders(freeSlots, 'n1', { affinity })).map(({ order }) => order.task.task_id.split('-')[1])

    test('get sessions with matching affinity near the head of the queue', async () => {
      await fill(['a', 'b', 'c', 'b', 'a', 'b'])
      expect(await imagesOf(2, ['image:b', 'image:z'])).toEqual(['b', 'b'])
      expect(await imagesOf(2, ['image:b'])).toEqual(['b', 'a'].toSorted())
      expect(await imagesOf(9, ['image:none'])).toEqual(['c', 'a'])
    })

    test('do not overtake a higher priority, nor a session that has waited long', async () => {
      await fill(['cold', ...Array.from({ length: 700 }, () => 'warm')])
      let taken = 0
      while ((await imagesOf(20, ['image:warm'])).every((image) => image === 'warm')) taken += 20
      expect(taken).toBeGreaterThan(400)
      expect(taken).toBeLessThan(540)
      await driver.submit('urgent', 1, { dispatch_priority: 5 })
      expect(await imagesOf(1, ['image:warm'])).toEqual([undefined])
    })

    test('share the queue with concurrent requests until it is empty', async () => {
      await fill(
        Array.from({ length: 50 }, (_, i) => String(i % 5)),
        4,
      )
      const asked = Array.from({ length: 20 }, (_, i) =>
        driver.orders(10, `n${(i % 3) + 1}`, { affinity: [`image:${i % 5}`] }),
      )
      const leases = (await Promise.all(asked)).flat().map(toLease)
      expect(leases).toHaveLength(200)
      expect(new Set(leases.map(({ sessionId }) => sessionId)).size).toBe(200)
    })
  })
}
