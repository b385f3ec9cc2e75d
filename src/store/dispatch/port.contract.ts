import { NodeStageMetrics } from '../../model/node.ts'
import fc from 'fast-check'
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import {
  DispatchDriver,
  makeOutcome as outcomeOf,
  makeRegistration,
  makeTask,
  toLease,
} from '../../../test/support/dispatch-driver.ts'
import { anySteps, playSteps } from '../../../test/support/dispatch-random.ts'
import type { Database } from '../database.ts'
import { claimCallbacks, requeueCallback, settleCallback } from './commands/callbacks.ts'
import { drainNode, putNode, removeIdleNode, touchNode } from './commands/nodes.ts'
import { describeDeletion } from './contracts/deletion.contract.ts'
import { describeNodes } from './contracts/nodes.contract.ts'
import { describePolicy } from './contracts/policy.contract.ts'
import { describeQueries } from './contracts/queries.contract.ts'
import { describeTaskCommands } from './contracts/task-commands.contract.ts'
import { readEvents } from './queries/events.ts'
import { findNode, listNodes } from './queries/nodes.ts'
import { countOpen, listTaskSessions } from './queries/sessions.ts'
import { findTask, listTasks } from './queries/tasks.ts'
import { runs } from '../../../test/support/runs.ts'

const held = (lease: object) => ({ ...lease, kind: 'held' })
const accepted = { kind: 'accepted', isRefilled: false, taskStatus: 'running' }
const completed = { ...accepted, taskStatus: 'completed' }
const stale = { kind: 'refused', reason: 'stale' }

/** Behaviour of Dispatch on every database. */
export function describeDispatch(name: string, open: () => Promise<Database>): void {
  describe(`dispatch on ${name}`, () => {
    let database: Database
    let driver: DispatchDriver
    beforeAll(async () => {
      database = await open()
    })
    beforeEach(async () => {
      driver = new DispatchDriver(database)
      await driver.clear()
    })
    afterAll(() => database?.[Symbol.asyncDispose]())
    describeTaskCommands(() => database)
    describeDeletion(() => database)
    describeNodes(() => database)
    describeQueries(() => database)
    describePolicy(() => database)

    const statusOf = async (id: string) => {
      const { status, ended, valid, failed, cancelled, refills } = (await findTask(database.db, id))!
      return { status, ended, valid, failed, cancelled, refills }
    }
    const sessionsOf = async (id: string) => (await listTaskSessions(database.db, id)).sessions

    describe('submitting', () => {
      test('the same task twice is one task; another body with its id is a conflict', async () => {
        const task = makeTask('t', 3, { metadata: { a: 1, b: [{ c: 2, d: 3 }] } })
        const reordered = { ...task, metadata: { b: [{ d: 3, c: 2 }], a: 1 } }
        const kinds = async (...tasks: (typeof task)[]) =>
          (await driver.dispatch.enqueue(tasks.map((each) => ({ task: each })))).map(({ kind }) => kind)
        expect(await kinds(task, task)).toEqual(['created', 'same'])
        expect(await kinds(reordered)).toEqual(['same'])
        expect(await kinds({ ...task, instruction: 'else' }, makeTask('u', 1))).toEqual(['conflict', 'created'])
        expect(await countOpen(database.db)).toEqual({ queued: 4, leased: 0 })
      })

      test('forty concurrent submits create each task once', async () => {
        const tasks = ['a', 'b', 'c'].map((id) => ({ task: makeTask(id, 2) }))
        const rounds = Array.from({ length: 40 }, (_, i) => driver.dispatch.enqueue(i % 2 ? tasks : tasks.toReversed()))
        const kinds = (await Promise.all(rounds)).flat().map(({ kind }) => kind)
        expect(kinds.filter((kind) => kind === 'created')).toHaveLength(3)
        expect(kinds.filter((kind) => kind === 'same')).toHaveLength(117)
        expect(await countOpen(database.db)).toEqual({ queued: 6, leased: 0 })
      })

      test('JSON text is stored unchanged; an id that the database cannot hold is refused', async () => {
        const instruction = 'NUL \0, half a pair \ud800, quotes \' " \\ and \u2028'
        await driver.submit('t', 1, { instruction })
        const [leased] = await driver.orders(1)
        expect(leased?.order.task).toEqual(makeTask('t', 1, { instruction }))
        await expect(driver.submit('t\0', 1)).rejects.toMatchObject({ code: 'request.malformed' })
        const lease = toLease(leased!)
        const failure = { code: 'harness.exit-nonzero', message: instruction, status: 500 } as const
        expect(await driver.end(lease, undefined, { status: 'ERROR', failure })).toEqual(completed)
        expect((await sessionsOf('t'))[0]?.failure).toEqual(failure)
      })
    })

    describe('leasing', () => {
      test('leases at most the free slots, each session to one node', async () => {
        await driver.submit('t', 5)
        const nodes = await Promise.all(['n1', 'n2', 'n3', 'n4'].map((node) => driver.take(2, node)))
        const ids = nodes.flat().map(({ sessionId }) => sessionId)
        expect(new Set(ids).size).toBe(ids.length)
        expect(ids.length + (await driver.take(9)).length).toBe(5)
        expect(await driver.take(0)).toEqual([])
      })

      test('leases the higher priority first', async () => {
        for (const priority of [0, 100, 7]) await driver.submit(`t${priority}`, 2, { dispatch_priority: priority })
        const orders = await driver.orders(6)
        const ids = orders.map(({ order }) => order.task.task_id)
        expect(ids).toEqual(['t100', 't100', 't7', 't7', 't0', 't0'])
      })

      test('serves every task in turn within one priority, also a late one', async () => {
        driver = new DispatchDriver(database, { samplesPerRound: 2 })
        await driver.submit('big', 1000)
        const next = async () => {
          const [leased] = await driver.orders(1)
          return leased!.order.task.task_id
        }
        for (let i = 0; i < 101; i += 1) expect(await next()).toBe('big')
        await driver.submit('late', 6)
        const ids: string[] = []
        for (let i = 0; i < 14; i += 1) ids.push(await next())
        expect(ids.filter((id) => id === 'late')).toHaveLength(6)
        // And the late task does not get more than its turns.
        expect(ids.slice(0, 7).filter((id) => id === 'big').length).toBeGreaterThanOrEqual(3)
      })

      test('new tasks do not starve a task with many samples', async () => {
        await driver.submit('big', 200)
        let newcomers = 0
        const refill = async () => {
          newcomers += 1
          await driver.submit(`small${newcomers}`, 16)
        }
        for (let i = 0; i < 4; i += 1) await refill()
        let ofBig = 0
        for (let turn = 0; turn < 30; turn += 1) {
          const orders = await driver.orders(16)
          ofBig += orders.filter(({ order }) => order.task.task_id === 'big').length
          await refill()
        }
        // About one in five.
        expect(ofBig).toBeGreaterThanOrEqual(64)
        expect(ofBig).toBeLessThanOrEqual(160)
      })

      test('a long-served lane does not delay a new task in another lane', async () => {
        await driver.dispatch.enqueue([{ task: makeTask('gpu-big', 400), requires: ['gpu'] }])
        await driver.submit('cpu-big', 800)
        await driver.take(600)
        await driver.dispatch.enqueue([{ task: makeTask('gpu-new', 16), requires: ['gpu'] }])
        const orders = await driver.orders(48, 'n2', { labels: ['gpu'] })
        expect(orders.filter(({ order }) => order.task.task_id === 'gpu-new')).toHaveLength(16)
      })

      test('leases a session only to nodes with its labels, without blocking later sessions', async () => {
        await driver.dispatch.enqueue([
          { task: makeTask('gpu', 30, { dispatch_priority: 100 }), requires: ['gpu', 'runtime:docker'] },
          { task: makeTask('any', 1) },
        ])
        const from = async (labels: string[], freeSlots: number) =>
          (await driver.orders(freeSlots, 'n1', { labels })).map(({ order }) => order.task.task_id)
        expect(await from(['gpu'], 5)).toEqual(['any'])
        expect(await from(['runtime:docker', 'gpu', 'x'], 2)).toEqual(['gpu', 'gpu'])
      })

      test('a draining node gets no lease, and is removed when it holds none', async () => {
        const metrics = NodeStageMetrics.parse({ run_inflight: 1 })
        await putNode(database.db, { registration: makeRegistration('n1'), labels: ['gpu'] }, 1)
        await driver.submit('t', 2)
        const [lease] = await driver.take(1)
        expect(await touchNode(database.db, 'nobody', metrics, 2)).toBe(false)
        expect(await touchNode(database.db, 'n1', metrics, 2)).toBe(true)
        expect(await findNode(database.db, 'n1')).toMatchObject({ metrics, joinedAt: 1, seenAt: 2 })
        expect(await drainNode(database.db, 'n1')).toBe(true)
        expect(await driver.take(1)).toEqual([])
        expect(await removeIdleNode(database.db, 'n1')).toBe(false)
        expect((await listNodes(database.db))[0]).toMatchObject({ labels: ['gpu'], draining: true, leased: 1 })
        await driver.end(lease!)
        expect(await removeIdleNode(database.db, 'n1')).toBe(true)
      })
    })

    describe('accepting', () => {
      test('of eighty concurrent results for four samples four are accepted, and the task ends once', async () => {
        await driver.submit('t', 4, { callback_url: 'http://trainer.test/' })
        const leases = await driver.take(4)
        const reports = Array.from({ length: 80 }, (_, i) => {
          const lease = leases[i % 4]!
          // Repeated results, other results, and results of attempts that do not exist.
          if (i < 40) return driver.end(lease)
          if (i < 60)
            return driver.dispatch.accept(
              { ...outcomeOf(lease), nodeId: 'n1' },
              { path: 'x', digest: `${i}`, bytes: 1 },
            )
          return driver.end({ ...lease, attempt: lease.attempt + 1 })
        })
        const answers = await Promise.all(reports)
        expect(answers.filter(({ kind }) => kind === 'accepted')).toHaveLength(4)
        expect(answers.filter((each) => each.kind === 'accepted' && each.taskStatus === 'completed')).toHaveLength(1)
        expect(answers.slice(60)).toEqual(Array.from({ length: 20 }, () => stale))
        expect(await statusOf('t')).toMatchObject({ status: 'completed', ended: 4, valid: 4 })
        expect(await database.db.selectFrom('results').selectAll().execute()).toHaveLength(4)
        expect(await claimCallbacks(database.db, { claimMs: 10, limit: 10 }, driver.wall)).toHaveLength(1)
      })

      test('the same result again is a duplicate; a result of another node, session or attempt is refused', async () => {
        await driver.submit('t', 2)
        const [lease] = await driver.take(1)
        expect(await driver.end(lease!, undefined, { nodeId: 'n2' })).toEqual(stale)
        expect(await driver.end({ ...lease!, attempt: 2 })).toEqual(stale)
        expect(await driver.end({ sessionId: 'ses_none', attempt: 1 })).toEqual({
          kind: 'refused',
          reason: 'unknown-session',
        })
        expect(await driver.end(lease!)).toEqual(accepted)
        expect(await driver.end(lease!)).toEqual({ kind: 'duplicate' })
        const other = { path: 'other', digest: 'other', bytes: 1 }
        expect(await driver.dispatch.accept(outcomeOf(lease!), other)).toEqual(stale)
        expect(await driver.renew('n1', [lease!])).toEqual([{ ...lease, kind: 'accepted' }])
      })

      test('attempts that failed because of infrastructure are retried up to a limit; failures of the agent count', async () => {
        await driver.dispatch.enqueue([{ task: makeTask('t', 2), maxFailures: 3 }])
        const [first, second] = await driver.take(2)
        expect(await driver.end(first!, 'harness.exit-nonzero')).toEqual(accepted)
        let lease = second!
        for (const attempt of [2, 3]) {
          expect(await driver.end(lease, 'runtime.gone')).toEqual({ ...accepted, isRefilled: true })
          expect(await driver.end(lease)).toEqual({ kind: 'duplicate' })
          lease = (await driver.take(1, 'n1'))[0]!
          expect(lease).toEqual({ sessionId: second!.sessionId, attempt })
        }
        expect(await driver.end(lease, 'evaluator.crashed')).toEqual(completed)
        expect(await statusOf('t')).toEqual({
          status: 'completed',
          ended: 2,
          valid: 1,
          failed: 1,
          cancelled: 0,
          refills: 2,
        })
        expect(await driver.take(1)).toEqual([])
      })

      test('a task without valid sessions has failed; a failure of the caller is not retried', async () => {
        await driver.submit('t', 1)
        const [lease] = await driver.take(1)
        expect(await driver.end(lease!, 'runtime.unsupported')).toEqual({ ...accepted, taskStatus: 'failed' })
        expect(await statusOf('t')).toMatchObject({ status: 'failed', failed: 1, refills: 0 })
      })

      test('enough usable sessions end the task; a session without trained tokens is not usable', async () => {
        await driver.submit('t', 6, { early_stop_min_usable_sessions: 2 })
        const [a, b, c, d] = await driver.take(4)
        expect(await driver.end(a!)).toEqual(accepted)
        expect(await driver.end(b!, 'harness.exit-nonzero')).toEqual(accepted)
        expect(await driver.end(c!)).toEqual(completed)
        expect(await statusOf('t')).toMatchObject({ status: 'completed', ended: 6, valid: 3, cancelled: 3 })
        expect(await driver.end(d!)).toEqual({ kind: 'refused', reason: 'cancelled' })
        expect(await driver.renew('n1', [d!])).toEqual([{ ...d, kind: 'cancelled' }])
        expect(await driver.take(5)).toEqual([])
      })
    })

    describe('cancelling', () => {
      test('a task ends once, whatever the states of its sessions', async () => {
        await driver.submit('t', 4, { callback_url: 'http://trainer.test/' })
        const [done, again, leased] = await driver.take(3)
        await driver.end(done!)
        await driver.end(again!, 'runtime.gone')
        expect(await driver.dispatch.cancelTask('t')).toBe('cancelled')
        expect(await driver.dispatch.cancelTask('t')).toBe('cancelled')
        expect(await driver.dispatch.cancelTask('none')).toBeUndefined()
        expect(await statusOf('t')).toMatchObject({ status: 'cancelled', ended: 4, valid: 1, cancelled: 3 })
        const states = (await sessionsOf('t')).map(({ status }) => status)
        expect(states.toSorted()).toEqual(['CANCELLED', 'CANCELLED', 'CANCELLED', 'COMPLETED'])
        expect(await driver.end(leased!)).toEqual({ kind: 'refused', reason: 'cancelled' })
        expect(await driver.dispatch.release('n1', [leased!])).toEqual([])
        expect(await driver.take(4)).toEqual([])
        expect(await claimCallbacks(database.db, { claimMs: 1, limit: 9 }, driver.wall)).toHaveLength(1)
      })

      test('a session is cancelled alone, and the task ends with its last session', async () => {
        await driver.submit('t', 3)
        const [done, leased] = await driver.take(2)
        await driver.end(done!)
        const queued = (await sessionsOf('t'))[2]!.sessionId
        expect(await driver.dispatch.cancelSession(queued)).toBe(true)
        expect(await driver.dispatch.cancelSession(queued)).toBe(false)
        expect(await driver.dispatch.cancelSession(done!.sessionId)).toBe(false)
        expect(await driver.dispatch.cancelSession('ses_none')).toBe(false)
        expect(await statusOf('t')).toMatchObject({ status: 'running', ended: 2 })
        expect(await driver.dispatch.cancelSession(leased!.sessionId)).toBe(true)
        expect(await statusOf('t')).toMatchObject({ status: 'completed', ended: 3, valid: 1, cancelled: 2 })
      })

      test('a stale task is cancelled when the policy advances, and refused afterwards', async () => {
        const submit = (id: string, policyVersion: number) =>
          driver.dispatch.enqueue([{ task: makeTask(id, 1), policyVersion, stalenessLimit: 2 }])
        await submit('old', 1)
        await submit('new', 3)
        const [lease] = await driver.take(1)
        await driver.dispatch.changePolicy({ version: 3 })
        expect(await driver.renew('n1', [lease!])).toEqual([held(lease!)])
        await driver.dispatch.changePolicy({ version: 4 })
        await driver.dispatch.changePolicy({ version: 2 })
        expect(await driver.renew('n1', [lease!])).toEqual([{ ...lease, kind: 'cancelled' }])
        expect(await statusOf('new')).toMatchObject({ status: 'running' })
        expect(await submit('older', 1)).toEqual([{ taskId: 'older', kind: 'stale' }])
      })
    })

    describe('leases', () => {
      test('an expired lease goes to another node, and the first node is refused', async () => {
        await driver.submit('t', 2)
        const [quiet, loud] = await driver.take(2)
        expect(await driver.pass(6000)).toBe(0)
        expect(await driver.renew('n1', [loud!])).toEqual([held(loud!)])
        expect(await driver.pass(6000)).toBe(1)
        expect(await driver.renew('n1', [quiet!, loud!])).toEqual([{ ...quiet, kind: 'lost' }, held(loud!)])
        const [again] = await driver.take(1, 'n2')
        expect(again).toEqual({ sessionId: quiet!.sessionId, attempt: 2 })
        expect(await driver.end(quiet!)).toEqual(stale)
        expect(await driver.end(again!, undefined, { nodeId: 'n2' })).toEqual(accepted)
        const attempts = await database.db.selectFrom('attempts').select(['attempt', 'node_id', 'ending']).execute()
        expect(attempts).toEqual([
          { attempt: 1, node_id: 'n1', ending: 'lost' },
          { attempt: 2, node_id: 'n2', ending: 'accepted' },
        ])
      })

      test('repeatedly lost leases end the session', async () => {
        await driver.submit('t', 1)
        for (let attempt = 1; attempt <= 4; attempt += 1) {
          expect(await driver.take(1)).toMatchObject([{ attempt }])
          expect(await driver.pass(20_000)).toBe(1)
        }
        expect(await statusOf('t')).toMatchObject({ status: 'failed', failed: 1, refills: 3 })
        expect((await sessionsOf('t'))[0]?.failure?.code).toBe('session.node-lost')
      })

      test('neither a clock jump, nor a new server, nor a suspended one loses a lease', async () => {
        await driver.submit('t', 1)
        const [lease] = await driver.take(1)
        driver.wall += 1e10
        expect(await driver.pass(3000)).toBe(0)
        driver.wall -= 2e10
        // A server that was stopped for an hour does not count that time, because nodes could not renew.
        driver.elapsed += 3_600_000
        expect(await driver.dispatch.expire()).toBe(0)
        const other = new DispatchDriver(database)
        other.elapsed = 1e9
        expect(await other.pass(driver.leaseMs - 1)).toBe(0)
        expect(await other.renew('n1', [lease!])).toEqual([held(lease!)])
        expect(await driver.pass(driver.leaseMs - 1)).toBe(0)
        expect(await driver.end(lease!)).toEqual(completed)
      })

      test('three thousand leases are renewed in one call, only for the node that holds them', async () => {
        await driver.submit('t', 3000)
        const leases = await driver.take(3000)
        const renewals = leases.map((lease) => ({ ...lease, status: 'RUNNING' as const }))
        const outcomes = await driver.renew('n1', renewals)
        await database.maintain()
        expect(outcomes.filter(({ kind }) => kind === 'held')).toHaveLength(3000)
        expect(new Set((await sessionsOf('t')).map(({ status }) => status))).toEqual(new Set(['RUNNING']))
        expect(await driver.renew('n2', renewals.slice(0, 1))).toMatchObject([{ kind: 'lost' }])
      })

      test('a released lease is not a failure', async () => {
        await driver.dispatch.enqueue([{ task: makeTask('t', 1), maxFailures: 1 }])
        for (let attempt = 1; attempt <= 3; attempt += 1) {
          const leases = await driver.take(1)
          expect(await driver.dispatch.release('n2', leases)).toEqual([])
          expect(await driver.dispatch.release('n1', leases)).toEqual(leases)
          expect(await driver.end(leases[0]!)).toEqual(stale)
        }
        expect(await driver.take(1)).toMatchObject([{ attempt: 4 }])
        expect(await statusOf('t')).toMatchObject({ status: 'running', refills: 0, failed: 0 })
      })

      test('loseNode() ends all leases of a node at once', async () => {
        await driver.submit('t', 3)
        await driver.take(2)
        const [other] = await driver.take(1, 'n2')
        expect(await driver.dispatch.loseNode('n1')).toBe(2)
        expect(await countOpen(database.db)).toEqual({ queued: 2, leased: 1 })
        expect(await driver.renew('n2', [other!])).toEqual([held(other!)])
      })
    })

    test('any sequence of steps has the same outcome as in a simple model', { timeout: 180_000 }, async () => {
      const property = fc.asyncProperty(anySteps, async (steps) => {
        await driver.clear()
        await playSteps(driver, steps)
      })
      await fc.assert(property, { numRuns: runs(15) })
    })

    describe('events, lists and callbacks', () => {
      test('events are read in order, each once, from a cursor', async () => {
        await driver.submit('t', 2)
        for (const lease of await driver.take(2)) await driver.end(lease)
        const { events: all, next } = await readEvents(database.db, { limit: 100 })
        expect(all.map(({ type }) => type)).toEqual([
          'task.created',
          ...Array.from({ length: 3 }, () => 'session.state_changed'),
          'task.updated',
          'session.state_changed',
          'task.completed',
        ])
        const rest = await readEvents(database.db, { after: all[2]!.cursor, limit: 2 })
        expect(rest.events).toEqual(all.slice(3, 5))
        expect(all[4]!.data).toEqual({ task_id: 't', status: 'running', completed_sessions: 1, total_sessions: 2 })
        expect(await readEvents(database.db, { after: next, limit: 100 })).toMatchObject({
          events: [],
          isBehind: false,
        })
      })

      test('lists are paged, newest first', async () => {
        for (const id of ['a', 'b', 'c', 'd', 'e']) await driver.submit(id, 1)
        const first = await listTasks(database.db, { limit: 2 })
        const second = await listTasks(database.db, { limit: 2, cursor: first.next })
        const third = await listTasks(database.db, { limit: 2, cursor: second.next })
        const ids = [first, second, third].map(({ tasks }) => tasks.map(({ taskId }) => taskId))
        expect(ids).toEqual([['e', 'd'], ['c', 'b'], ['a']])
        expect(third.next).toBeUndefined()
        expect((await listTasks(database.db, { limit: 9, status: 'completed' })).tasks).toEqual([])
      })

      test('a callback is claimed by one server, is due again if not settled, and can end as dead', async () => {
        await driver.submit('t', 1, { callback_url: 'http://trainer.test/' })
        await driver.end((await driver.take(1))[0]!)
        const take = (now: number) => claimCallbacks(database.db, { claimMs: 100, limit: 5 }, now)
        const [due] = await take(driver.wall)
        expect(due).toMatchObject({ taskId: 't', url: 'http://trainer.test/', tries: 1 })
        expect(await take(driver.wall + 99)).toEqual([])
        expect(await take(driver.wall + 100)).toMatchObject([{ tries: 2 }])
        await settleCallback(database.db, due!.id, { kind: 'again', at: driver.wall + 1000, error: 'no\0' })
        expect(await take(driver.wall + 999)).toEqual([])
        expect(await take(driver.wall + 1000)).toMatchObject([{ tries: 3 }])
        await settleCallback(database.db, due!.id, { kind: 'dead', error: 'gone' })
        expect(await take(driver.wall + 1e9)).toEqual([])
        expect(await requeueCallback(database.db, due!.id, driver.wall)).toBe(true)
        expect(await requeueCallback(database.db, due!.id, driver.wall)).toBe(false)
        expect(await take(driver.wall)).toMatchObject([{ tries: 1 }])
        // The clock was ahead, and has been set back.
        expect(await take(driver.wall - 3_600_000)).toMatchObject([{ tries: 2 }])
      })
    })
  })
}
