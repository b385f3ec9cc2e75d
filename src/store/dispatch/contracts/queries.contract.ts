import { once } from 'node:events'
import { beforeEach, describe, expect, test } from 'vitest'
import { DispatchDriver, makeTask } from '../../../../test/support/dispatch-driver.ts'
import type { Database } from '../../database.ts'
import { isUnavailable } from '../../store-errors.ts'
import { claimCallbacks, settleCallback } from '../commands/callbacks.ts'
import { openChanges } from '../internal/changes.ts'
import { findCallback, listCallbacks } from '../queries/callbacks.ts'
import { newestCursor, readEvents } from '../queries/events.ts'
import { listSessions, listTaskSessions } from '../queries/sessions.ts'
import { listRunning, listTasks } from '../queries/tasks.ts'

/** Lists, events and change notifications. */
export function describeQueries(open: () => Database): void {
  let database: Database
  let driver: DispatchDriver
  beforeEach(async () => {
    database = open()
    driver = new DispatchDriver(database)
    await driver.clear()
  })
  const agent = (harness: string, model?: string) => ({
    harness,
    model_name: model,
    settings: {},
    env: {},
    mcp_servers: [],
  })

  describe('lists', () => {
    test('of tasks are ordered by last change, and filtered by id, model, harness and time', async () => {
      for (const id of ['a-1', 'b-1', 'a-2', 'b_2']) {
        driver.wall += 10
        await driver.submit(id, 1, { agent: agent(id.startsWith('a') ? 'pi' : 'codex', `m-${id}`) })
      }
      driver.wall += 10
      await driver.end((await driver.take(1))[0]!)
      const ids = async (filter: Partial<Parameters<typeof listTasks>[1]>) =>
        (await listTasks(database.db, { limit: 9, ...filter })).tasks.map(({ taskId }) => taskId)
      expect(await ids({})).toEqual(['a-1', 'b_2', 'a-2', 'b-1'])
      expect(await ids({ search: '-1' })).toEqual(['a-1', 'b-1'])
      expect(await ids({ search: '_' })).toEqual(['b_2'])
      expect(await ids({ model: 'm-a-2' })).toEqual(['a-2'])
      expect(await ids({ harness: 'codex', status: 'running' })).toEqual(['b_2', 'b-1'])
      expect(await ids({ since: driver.wall - 10 })).toEqual(['a-1', 'b_2'])
      const seen: string[] = []
      for (let cursor: string | undefined, isFirst = true; isFirst || cursor !== undefined; isFirst = false) {
        const page = await listTasks(database.db, { limit: 1, cursor })
        seen.push(...page.tasks.map(({ taskId }) => taskId))
        cursor = page.next
      }
      expect(seen).toEqual(['a-1', 'b_2', 'a-2', 'b-1'])
      expect(await listRunning(database.db)).toEqual(['b-1', 'a-2', 'b_2'])
    })

    test('of sessions are filtered by status, task, node, harness and failure, in pages', async () => {
      await driver.submit('t', 2)
      await driver.submit('u', 3, { agent: agent('codex') })
      const [a] = await driver.take(1, 'n1')
      await driver.take(1, 'n2')
      await driver.end(a!, 'harness.exit-nonzero')
      const find = async (filter: Partial<Parameters<typeof listSessions>[1]>) => {
        const { sessions } = await listSessions(database.db, { limit: 9, ...filter })
        return sessions.map(({ taskId, status }) => `${taskId} ${status}`)
      }
      expect((await find({})).toSorted()).toEqual([
        't ERROR',
        't REGISTERED',
        'u REGISTERED',
        'u REGISTERED',
        'u REGISTERED',
      ])
      expect(await find({ status: ['ERROR', 'TIMEOUT'] })).toEqual(['t ERROR'])
      expect(await find({ failure: 'harness.exit-nonzero' })).toEqual(['t ERROR'])
      expect(await find({ failure: 'runtime.gone' })).toEqual([])
      expect(await find({ nodeId: 'n2' })).toEqual(['t REGISTERED'])
      expect(await find({ harness: 'codex', taskId: 'u' })).toHaveLength(3)
      expect(await find({ harness: 'codex', taskId: 't' })).toEqual([])
      const seen = new Set<string>()
      for (let cursor: string | undefined, pages = 0; pages === 0 || cursor !== undefined; pages += 1) {
        const page = await listSessions(database.db, { limit: 2, cursor })
        for (const { sessionId } of page.sessions) seen.add(sessionId)
        cursor = page.next
        expect(pages).toBeLessThan(3)
      }
      expect(seen.size).toBe(5)
      const first = await listTaskSessions(database.db, 'u', { limit: 2 })
      const second = await listTaskSessions(database.db, 'u', { limit: 2, cursor: first.next })
      expect([...first.sessions, ...second.sessions].map(({ sample }) => sample)).toEqual([0, 1, 2])
      expect(second.next).toBeUndefined()
    })

    test('of callbacks are filtered by state and task, newest first', async () => {
      for (const id of ['a', 'b', 'c']) {
        await driver.submit(id, 1, { callback_url: `http://trainer.test/${id}` })
        await driver.end((await driver.take(1))[0]!)
      }
      const due = await claimCallbacks(database.db, { claimMs: 5, limit: 9 }, driver.wall)
      await settleCallback(database.db, due[0]!.id, { kind: 'dead', error: 'gone' })
      await settleCallback(database.db, due[1]!.id, { kind: 'delivered' })
      expect(await listCallbacks(database.db, { state: 'dead', limit: 9 })).toEqual({
        callbacks: [
          { id: due[0]!.id, taskId: 'a', url: 'http://trainer.test/a', state: 'dead', tries: 1, lastError: 'gone' },
        ],
      })
      const page = await listCallbacks(database.db, { limit: 2 })
      const rest = await listCallbacks(database.db, { limit: 2, cursor: page.next })
      expect([...page.callbacks, ...rest.callbacks].map(({ taskId }) => taskId)).toEqual(['c', 'b', 'a'])
      expect((await listCallbacks(database.db, { taskId: 'b', limit: 2 })).callbacks).toHaveLength(1)
      expect(await findCallback(database.db, due[1]!.id)).toMatchObject({ state: 'delivered' })
      expect(await findCallback(database.db, 999)).toBeUndefined()
      driver.wall += 1000
      expect(await driver.dispatch.prune({ deliveredCallbacksOlderThanMs: 100 })).toBe(1)
    })
  })

  describe('events', () => {
    test('can be read for one task, from a cursor, until they are pruned', async () => {
      await driver.submit('old', 1)
      const now = await newestCursor(database.db)
      await driver.submit('a', 1)
      await driver.submit('b', 1)
      const all = await readEvents(database.db, { after: now, limit: 9 })
      expect(all.events.map(({ data }) => data['task_id'])).toEqual(['a', 'b'])
      const own = await readEvents(database.db, { after: now, limit: 9, taskId: 'b' })
      expect(own.events).toEqual(all.events.slice(1))
      expect((await readEvents(database.db, { after: own.next, limit: 9, taskId: 'b' })).events).toEqual([])
      driver.wall += 1000
      await driver.submit('c', 1)
      expect(await driver.dispatch.prune({ eventsOlderThanMs: 500 })).toBe(3)
      const left = await readEvents(database.db, { limit: 9 })
      expect(left.events.map(({ data }) => data['task_id'])).toEqual(['c'])
    })

    test('subscribers are notified of every change of a task', async () => {
      await using changes = await openChanges(database)
      driver = new DispatchDriver(database, { changes })
      const heard: string[] = []
      const stop = changes.subscribe((ids) => heard.push(...(ids === 'all' ? ['all'] : ids)))
      await driver.submit('t', 2)
      const [a, b] = await driver.take(2)
      await driver.renew('n1', [{ ...a!, status: 'RUNNING' }])
      await driver.end(a!)
      await driver.dispatch.release('n1', [b!])
      await driver.dispatch.cancelTask('t')
      expect(heard.every((id) => id === 't')).toBe(true)
      expect(heard.length).toBeGreaterThanOrEqual(6)
      stop()
      await driver.submit('u', 1)
      expect(heard).not.toContain('u')
    })

    test('notifications distinguish changes that may have ended a session or the task', async () => {
      await using changes = await openChanges(database)
      driver = new DispatchDriver(database, { changes })
      const heard: string[] = []
      changes.subscribe((_, news) => heard.push(news))
      const after = async (step: Promise<unknown>): Promise<string[]> => {
        heard.length = 0
        await step
        return [...heard]
      }
      await driver.submit('t', 3)
      const [a, b, c] = await driver.take(3)
      expect(heard.at(-1)).toBe('moved')
      expect(await after(driver.renew('n1', [{ ...a!, status: 'RUNNING' }]))).toEqual(['moved'])
      expect(await after(driver.end(a!))).toEqual(['ended'])
      expect(await after(driver.end(b!))).toEqual(['ended'])
      expect(await after(driver.end(c!))).toEqual(['over'])
      await driver.submit('u', 1)
      expect(await after(driver.dispatch.cancelTask('u'))).toEqual(['over'])
    })

    test('other servers on the same database are notified too', async (context) => {
      if (database.kind === 'embedded') return context.skip('there is only one server')
      await using here = await openChanges(database)
      await using there = await openChanges(database)
      const target = new EventTarget()
      const heard: string[] = []
      there.subscribe((ids, what) => {
        heard.push(what)
        target.dispatchEvent(new CustomEvent('news', { detail: ids }))
      })
      const news = once(target, 'news') as Promise<[CustomEvent]>
      driver = new DispatchDriver(database, { changes: here })
      await driver.dispatch.enqueue(['a', 'b'].map((id) => ({ task: makeTask(id, 1) })))
      expect((await news)[0].detail).toEqual(new Set(['a', 'b']))
      const more = once(target, 'news') as Promise<[CustomEvent]>
      here.announce(Array.from({ length: 2000 }, (_, i) => `task-${i}`))
      expect((await more)[0].detail).toBe('all')
      const last = once(target, 'news')
      here.announce(['a'], 'ended')
      here.announce(['b'], 'moved')
      await last
      expect(heard).toEqual(['over', 'over', 'ended'])
    })
  })

  test('isUnavailable() distinguishes an unreachable database from a wrong statement', async () => {
    expect(isUnavailable(Object.assign(new Error('x'), { code: 'ECONNREFUSED' }))).toBe(true)
    expect(isUnavailable(Object.assign(new Error('x'), { code: '57P01' }))).toBe(true)
    expect(isUnavailable(new Error('Connection terminated unexpectedly'))).toBe(true)
    const wrong = await database.db
      .selectFrom('none' as 'tasks')
      .selectAll()
      .execute()
      .catch((error: unknown) => error)
    expect(isUnavailable(wrong)).toBe(false)
  })
}
