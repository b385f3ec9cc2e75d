import { beforeEach, describe, expect, test } from 'vitest'
import { DispatchDriver, makeTask } from '../../../../test/support/dispatch-driver.ts'
import { auditTables } from '../../../../test/support/dispatch-tables.ts'
import type { Database } from '../../database.ts'
import { claimCallbacks, settleCallback } from '../commands/callbacks.ts'
import { putQuota } from '../commands/put-quota.ts'
import { countOpen, findSession, listTaskSessions } from '../queries/sessions.ts'
import { findTask, listEndings, listTasks } from '../queries/tasks.ts'
import { listQuotas } from '../queries/quotas.ts'

/** Retries, updates, quotas and tombstones. */
export function describeTaskCommands(open: () => Database): void {
  let database: Database
  let driver: DispatchDriver
  beforeEach(async () => {
    database = open()
    driver = new DispatchDriver(database)
    await driver.clear()
  })
  const countsOf = async (id: string) => {
    const { status, ended, valid, usable, failed, cancelled } = (await findTask(database.db, id))!
    return { status, ended, valid, usable, failed, cancelled }
  }
  const calls = () => claimCallbacks(database.db, { claimMs: 1e9, limit: 9 }, driver.wall)

  describe('retries', () => {
    test('sessions that failed because of infrastructure are retried, results of the agent are final, and the callback is sent twice', async () => {
      await driver.dispatch.enqueue([
        { task: makeTask('t', 3, { callback_url: 'http://trainer.test/' }), maxFailures: 1 },
      ])
      const [good, own, spoilt] = await driver.take(3)
      await driver.end(good!)
      await driver.end(own!, 'harness.exit-nonzero')
      await driver.end(spoilt!, 'runtime.gone')
      const [first] = await calls()
      await settleCallback(database.db, first!.id, { kind: 'delivered' })
      expect(await countsOf('t')).toMatchObject({ status: 'completed', ended: 3, valid: 2, failed: 1 })
      expect(await driver.dispatch.retryTask('t', ['ERROR'])).toEqual({
        kind: 'retried',
        sessions: 1,
        taskStatus: 'running',
      })
      expect(await driver.dispatch.retryTask('t', ['ERROR'])).toMatchObject({ kind: 'retried', sessions: 0 })
      expect(await countsOf('t')).toMatchObject({ status: 'running', ended: 2, valid: 2, failed: 0 })
      expect(await driver.end(spoilt!)).toEqual({ kind: 'duplicate' })
      const [again] = await driver.take(2)
      expect(again).toEqual({ sessionId: spoilt!.sessionId, attempt: 2 })
      expect(await driver.end(again!)).toMatchObject({ kind: 'accepted', taskStatus: 'completed' })
      expect(await countsOf('t')).toMatchObject({ status: 'completed', ended: 3, valid: 3, failed: 0 })
      expect(await calls()).toHaveLength(1)
      // Every ending keeps its place, also that of a retried session.
      const endings = await listEndings(database.db, 't', { limit: 9 })
      expect(endings.map(({ place, isCurrent }) => ({ place, isCurrent }))).toEqual([
        { place: 1, isCurrent: true },
        { place: 2, isCurrent: true },
        { place: 3, isCurrent: false },
        { place: 4, isCurrent: true },
      ])
      expect(endings[2]).toMatchObject({ failure: { code: 'runtime.gone' }, result: { bytes: 10 } })
      expect(await listEndings(database.db, 't', { after: 3, limit: 9 })).toEqual(endings.slice(3))
      const retried = (await listTaskSessions(database.db, 't')).sessions[2]!
      expect(retried).toMatchObject({ attempt: 2, status: 'COMPLETED' })
      expect(retried.failure).toBeUndefined()
    })

    test('a retry drops the pending callback of the previous end', async () => {
      await driver.dispatch.enqueue([
        { task: makeTask('t', 1, { callback_url: 'http://trainer.test/' }), maxFailures: 1 },
      ])
      await driver.end((await driver.take(1))[0]!, 'runtime.gone')
      await driver.dispatch.retryTask('t', ['ERROR'])
      expect(await calls()).toEqual([])
      await driver.end((await driver.take(1))[0]!)
      expect(await calls()).toHaveLength(1)
    })

    test('a timeout is final, and retried only when listed', async () => {
      await driver.submit('t', 1)
      const [lease] = await driver.take(1)
      await driver.end(lease!, undefined, { status: 'TIMEOUT' })
      expect(await driver.dispatch.retryTask('t', ['ERROR', 'CANCELLED'])).toMatchObject({ sessions: 0 })
      expect(await driver.dispatch.retrySession(lease!.sessionId)).toEqual({ kind: 'stands' })
      expect(await driver.dispatch.retryTask('t', ['TIMEOUT'])).toMatchObject({ sessions: 1 })
      expect(await countsOf('t')).toEqual({
        status: 'running',
        ended: 0,
        valid: 0,
        usable: 0,
        failed: 0,
        cancelled: 0,
      })
    })

    test('cancelled sessions can be retried; the node that held one still gets `cancelled`', async () => {
      await driver.submit('t', 2)
      const [held] = await driver.take(1)
      await driver.dispatch.cancelTask('t')
      expect(await driver.dispatch.retryTask('t', ['CANCELLED'])).toMatchObject({ sessions: 2, taskStatus: 'running' })
      expect(await driver.renew('n1', [held!])).toEqual([{ ...held, kind: 'cancelled' }])
      expect(await driver.end(held!)).toEqual({ kind: 'refused', reason: 'cancelled' })
      expect(await driver.take(5)).toMatchObject([{ attempt: 2 }, { attempt: 2 }])
      expect(await auditTables(database)).toEqual([])
    })

    test('retrySession() refuses a running, final or unknown session', async () => {
      await driver.dispatch.enqueue([{ task: makeTask('t', 2), maxFailures: 1 }])
      const [a, b] = await driver.take(2)
      const retry = async ({ sessionId }: { sessionId: string }) => (await driver.dispatch.retrySession(sessionId)).kind
      expect(await retry(a!)).toBe('under-way')
      await driver.end(a!)
      expect(await retry(a!)).toBe('stands')
      await driver.end(b!, 'evaluator.crashed')
      expect(await retry(b!)).toBe('retried')
      expect(await retry(b!)).toBe('under-way')
      expect(await retry({ sessionId: 'ses_none' })).toBe('unknown-session')
      expect(await driver.dispatch.retryTask('none', ['ERROR'])).toEqual({ kind: 'unknown-task' })
      expect((await findSession(database.db, b!.sessionId))?.attempts).toMatchObject([
        { attempt: 1, ending: 'accepted', failure: { code: 'evaluator.crashed' } },
      ])
    })

    test('a retry refuses stale tasks and reached early stops, and resets the failure count', async () => {
      await driver.dispatch.enqueue([
        { task: makeTask('old', 1), policyVersion: 1, stalenessLimit: 0 },
        { task: makeTask('enough', 2, { early_stop_min_usable_sessions: 1 }) },
        { task: makeTask('twice', 1), maxFailures: 2 },
      ])
      await driver.dispatch.changePolicy({ version: 2 })
      expect(await driver.dispatch.retryTask('old', ['CANCELLED'])).toEqual({ kind: 'stale' })
      for (const lease of await driver.take(2)) await driver.end(lease)
      expect(await driver.dispatch.retryTask('enough', ['CANCELLED'])).toEqual({ kind: 'enough' })
      for (const round of [1, 2]) {
        for (const isRefilled of [true, false]) {
          expect(await driver.end((await driver.take(1))[0]!, 'runtime.gone')).toMatchObject({ isRefilled })
        }
        if (round === 1) expect(await driver.dispatch.retryTask('twice', ['ERROR'])).toMatchObject({ sessions: 1 })
      }
      expect(await auditTables(database)).toEqual([])
    })
  })

  describe('updating a task', () => {
    test('moves its sessions to the new priority, also a released one', async () => {
      await driver.submit('t', 3)
      const held = await driver.take(1)
      await driver.submit('u', 1, { dispatch_priority: 10 })
      expect(await driver.dispatch.updateTask('t', { priority: 20 })).toBe('updated')
      await driver.dispatch.release('n1', held)
      const orders = await driver.orders(9)
      expect(orders.map(({ order }) => order.task.task_id)).toEqual(['t', 't', 't', 'u'])
      expect(await findTask(database.db, 't')).toMatchObject({ priority: 20 })
    })

    test('ends the task at a reached early stop; null removes it; only while the task runs', async () => {
      await driver.submit('t', 3)
      const [a, b] = await driver.take(2)
      await driver.end(a!)
      expect(await driver.dispatch.updateTask('t', { earlyStop: 2 })).toBe('updated')
      expect(await driver.dispatch.updateTask('t', { earlyStop: null })).toBe('updated')
      expect(await driver.dispatch.updateTask('t', { priority: 3 })).toBe('updated')
      expect(await countsOf('t')).toMatchObject({ status: 'running' })
      expect(await driver.dispatch.updateTask('t', { earlyStop: 1 })).toBe('updated')
      expect(await countsOf('t')).toMatchObject({ status: 'completed', ended: 3, valid: 1, cancelled: 2 })
      expect(await driver.end(b!)).toEqual({ kind: 'refused', reason: 'cancelled' })
      expect(await driver.dispatch.updateTask('t', { earlyStop: null })).toBe('over')
      expect(await driver.dispatch.updateTask('none', {})).toBe('unknown-task')
    })
  })

  describe('quotas', () => {
    test('a batch above the quota is refused as a whole; existing tasks return `same`', async () => {
      await putQuota(database.db, 'ann', { maxQueued: 5, maxRunning: null })
      const submit = async (...sizes: number[]) => {
        const tasks = sizes.map((size) => ({ task: makeTask(`t${size}`, size) }))
        return (await driver.dispatch.enqueue(tasks, { owner: 'ann' })).map(({ kind }) => kind)
      }
      expect(await submit(3)).toEqual(['created'])
      expect(await submit(1, 2, 3)).toEqual(['over-quota', 'over-quota', 'over-quota'])
      expect(await submit(3)).toEqual(['same'])
      expect(await submit(2)).toEqual(['created'])
      await driver.submit('other', 50, {}, 'bob')
      await driver.take(1)
      await driver.take(3)
      expect(await listQuotas(database.db)).toMatchObject([
        { owner: 'ann', maxQueued: 5, maxRunning: null, queued: 3, running: 2 },
        { owner: 'bob', maxQueued: null, queued: 48, running: 2 },
      ])
      await driver.dispatch.cancelTask('t3')
      expect(await driver.dispatch.retryTask('t3', ['CANCELLED'])).toMatchObject({ sessions: 3 })
      await driver.dispatch.cancelTask('t3')
      await putQuota(database.db, 'ann', { maxQueued: 4, maxRunning: null })
      expect(await driver.dispatch.retryTask('t3', ['CANCELLED'])).toEqual({ kind: 'over-quota' })
    })

    test('thirty concurrent submits do not exceed the quota', async () => {
      await putQuota(database.db, 'ann', { maxQueued: 10, maxRunning: null })
      const batches = Array.from({ length: 30 }, (_, i) =>
        driver.dispatch.enqueue([{ task: makeTask(`t${i}`, 3) }], { owner: 'ann' }),
      )
      const kinds = (await Promise.all(batches)).flat().map(({ kind }) => kind)
      expect(kinds.filter((kind) => kind === 'created')).toHaveLength(3)
      expect(await countOpen(database.db)).toEqual({ queued: 9, leased: 0 })
    })

    test('concurrent leases do not exceed the running limit of an owner, and other owners are served', async () => {
      await putQuota(database.db, 'ann', { maxQueued: null, maxRunning: 3 })
      await driver.submit('a', 40, { dispatch_priority: 50 }, 'ann')
      await driver.dispatch.enqueue([{ task: makeTask('g', 40), requires: ['gpu'] }], { owner: 'ann' })
      await driver.submit('b', 2, {}, 'bob')
      const room = { labels: ['gpu'], freeSlots: 2 }
      const answers = await Promise.all(
        ['n1', 'n2', 'n3', 'n1', 'n2', 'n3', 'n1', 'n2'].map((node) => driver.dispatch.lease(node, room)),
      )
      const ids = answers.flatMap(({ orders }) => orders.map(({ order }) => order.task.task_id))
      expect(ids.filter((id) => id !== 'b')).toHaveLength(3)
      expect((await driver.orders(9, 'n1', room)).length + ids.length).toBe(5)
      const [held] = (await listTaskSessions(database.db, 'a')).sessions.filter(({ state }) => state === 'leased')
      const { sessionId, attempt, nodeId } = held!
      await driver.end({ sessionId, attempt }, undefined, { nodeId: nodeId! })
      expect(await driver.orders(9, 'n1', room)).toMatchObject([{ order: { task: { task_id: 'a' } } }])
      await putQuota(database.db, 'ann', { maxQueued: null, maxRunning: null })
      expect(await driver.orders(9, 'n2', { labels: [] })).toHaveLength(9)
    })

    test('queued leases have the time of their own statement', async () => {
      let now = 1000
      const { dispatch } = new DispatchDriver(database, { clock: { now: () => (now += 1) } })
      await putQuota(database.db, 'ann', { maxQueued: null, maxRunning: 100 })
      await dispatch.enqueue([{ task: makeTask('a', 20) }], { owner: 'ann' })
      // More requests than one transaction handles.
      await Promise.all(Array.from({ length: 20 }, () => dispatch.lease('n1', { labels: [], freeSlots: 1 })))
      const rows = await database.db.selectFrom('sessions').select('leased_at').execute()
      const times = new Set(rows.map(({ leased_at }) => leased_at))
      expect(times.size).toBeGreaterThan(1)
      expect(times).not.toContain(null)
    })

    test('an owner with a hundred tasks gets no more slots than one with a single task', async () => {
      const many = Array.from({ length: 100 }, (_, i) => ({ task: makeTask(`many${i}`, 4) }))
      await driver.dispatch.enqueue(many, { owner: 'ann' })
      await driver.submit('one', 20, {}, 'bob')
      const first = await driver.orders(20)
      expect(first.filter(({ order }) => order.task.task_id === 'one')).toHaveLength(10)
      // And with one free slot at a time.
      let ones = 0
      for (let i = 0; i < 20; i += 1) {
        const [next] = await driver.orders(1, 'n2')
        if (next!.order.task.task_id === 'one') ones += 1
      }
      expect(ones).toBe(10)
    })
  })

  describe('tasks that were cancelled before their submit', () => {
    test('a late submission is refused until the tombstone is pruned', async () => {
      expect(await driver.dispatch.cancelTask('t')).toBeUndefined()
      expect(await driver.dispatch.cancelTask('t', { registerIfMissing: true })).toBe('cancelled')
      expect(await driver.dispatch.cancelTask('t', { registerIfMissing: true })).toBe('cancelled')
      expect(await driver.dispatch.cancelTask('t')).toBe('cancelled')
      const submit = () => driver.dispatch.enqueue([{ task: makeTask('t', 1) }])
      expect(await submit()).toEqual([{ taskId: 't', kind: 'cancelled' }])
      expect(await driver.dispatch.retryTask('t', ['CANCELLED'])).toEqual({ kind: 'unknown-task' })
      expect(await driver.dispatch.updateTask('t', { priority: 1 })).toBe('unknown-task')
      expect(await findTask(database.db, 't')).toBeUndefined()
      expect((await listTasks(database.db, { limit: 9 })).tasks).toEqual([])
      expect(await driver.dispatch.prune({ tombstonesOlderThanMs: 1000 })).toBe(0)
      driver.wall += 1001
      expect(await driver.dispatch.prune({ tombstonesOlderThanMs: 1000 })).toBe(1)
      expect(await submit()).toEqual([{ taskId: 't', kind: 'created' }])
    })

    test('a concurrent submit and cancel are serialised', async () => {
      const pairs = Array.from({ length: 12 }, async (_, i) => {
        const [outcomes, status] = await Promise.all([
          driver.dispatch.enqueue([{ task: makeTask(`t${i}`, 2) }]),
          driver.dispatch.cancelTask(`t${i}`, { registerIfMissing: true }),
        ])
        expect(status).toBe('cancelled')
        expect(['created', 'cancelled']).toContain(outcomes[0]?.kind)
      })
      await Promise.all(pairs)
      expect(await countOpen(database.db)).toEqual({ queued: 0, leased: 0 })
      expect(await auditTables(database)).toEqual([])
    })
  })
}
