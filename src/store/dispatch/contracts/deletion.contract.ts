import { sql } from 'kysely'
import { beforeEach, describe, expect, test } from 'vitest'
import { auditTables } from '../../../../test/support/dispatch-tables.ts'
import { DispatchDriver, makeTask } from '../../../../test/support/dispatch-driver.ts'
import type { Database } from '../../database.ts'
import type { ArtifactReference } from '../types.ts'
import { claimCallbacks, requeueCallback, settleCallback } from '../commands/callbacks.ts'
import { readEvents } from '../queries/events.ts'
import { findKnownFiles } from '../queries/known-files.ts'
import { findSession, listSessions } from '../queries/sessions.ts'
import { findTask, listEndings, listTasks } from '../queries/tasks.ts'

const DAY = 86_400_000
const unknown = { kind: 'refused', reason: 'unknown-session' }

/** Reruns, deletion and retention. */
export function describeDeletion(open: () => Database): void {
  let database: Database
  let driver: DispatchDriver
  beforeEach(async () => {
    database = open()
    driver = new DispatchDriver(database)
    await driver.clear()
  })

  const enqueue = async (id: string, more: { key?: string; instruction?: string } = {}) => {
    const { key, ...changes } = more
    const [outcome] = await driver.dispatch.enqueue([{ task: makeTask(id, 1, changes) }], { isRerun: true, key })
    return outcome
  }

  describe('an ended task that is submitted again', () => {
    test('is a new run; the older run has another id and keeps all its data', async () => {
      await finish('t', 2, { callback: 'http://trainer.test/' })
      const before = (await findTask(database.db, 't'))!
      const endings = await listEndings(database.db, 't', { limit: 9 })
      expect(await enqueue('t')).toEqual({ taskId: 't', kind: 'created', archivedAs: 't~1' })
      expect(await findTask(database.db, 't')).toMatchObject({ status: 'running', need: 1, ended: 0 })
      const { taskId: _, task, ...counts } = before
      expect(await findTask(database.db, 't~1')).toEqual({
        ...counts,
        taskId: 't~1',
        task: { ...task, task_id: 't~1' },
      })
      expect(await listEndings(database.db, 't~1', { limit: 9 })).toEqual(endings)
      expect(await listEndings(database.db, 't', { limit: 9 })).toEqual([])
      // The pending callback of the older run is dropped.
      expect(await claimCallbacks(database.db, { claimMs: 1e9, limit: 9 }, driver.wall + DAY)).toEqual([])
    })

    test('each run has a number, and existing ids are skipped', async () => {
      await driver.submit('t~1', 1)
      await driver.take(1)
      await finish('t')
      expect(await enqueue('t')).toMatchObject({ archivedAs: 't~1~' })
      await driver.dispatch.cancelTask('t')
      expect(await enqueue('t')).toMatchObject({ archivedAs: 't~2' })
    })

    test('a running task accepts the same body and refuses another', async () => {
      await driver.submit('t', 1)
      expect(await enqueue('t')).toEqual({ taskId: 't', kind: 'same' })
      expect(await enqueue('t', { instruction: 'Else.' })).toEqual({ taskId: 't', kind: 'conflict' })
    })

    test('a repeat with the same key finds its task, also ended or deleted', async () => {
      expect(await enqueue('t', { key: 'k' })).toMatchObject({ kind: 'created' })
      const [lease] = await driver.take(1)
      await driver.end(lease!)
      expect(await enqueue('t', { key: 'k' })).toEqual({ taskId: 't', kind: 'same' })
      expect(await enqueue('t', { key: 'k', instruction: 'Else.' })).toEqual({ taskId: 't', kind: 'conflict' })
      await driver.dispatch.deleteTask('t')
      expect(await enqueue('t', { key: 'k' })).toEqual({ taskId: 't', kind: 'deleted' })
      expect(await enqueue('t', { key: 'other' })).toMatchObject({ kind: 'created' })
      while ((await driver.dispatch.clearDeleted()) !== undefined);
      expect(await findTask(database.db, 't')).toMatchObject({ status: 'running' })
    })

    test('a task that was cancelled before its submit stays refused', async () => {
      await driver.dispatch.cancelTask('t', { registerIfMissing: true })
      expect(await enqueue('t')).toEqual({ taskId: 't', kind: 'cancelled' })
    })

    test('concurrent submits start one run', async () => {
      await finish('t')
      const outcomes = await Promise.all(Array.from({ length: 6 }, () => enqueue('t')))
      expect(outcomes.map((outcome) => outcome!.kind).toSorted()).toEqual(['created', ...Array(5).fill('same')])
    })
  })

  /** An ended task whose sessions have a result of ten bytes and some artifacts of five. */
  const finish = async (id: string, samples = 1, { artifacts = 1, callback = '' } = {}) => {
    await driver.submit(id, samples, callback === '' ? {} : { callback_url: callback })
    const leases = await driver.take(samples)
    for (const lease of leases) {
      const named = Array.from({ length: artifacts }, (_, i): ArtifactReference => {
        const storedPath = `artifacts/${lease.sessionId}/${i}`
        return { path: `${i}`, storedPath, bytes: 5, digest: 'd', isCut: false }
      })
      await driver.end(lease, undefined, {}, named)
    }
    return leases
  }
  const clearAll = async (taskId?: string) => {
    const paths: string[] = []
    for (;;) {
      const cleared = await driver.dispatch.clearDeleted(taskId)
      if (cleared === undefined) return paths
      paths.push(...cleared.paths)
    }
  }
  const countRows = async () => {
    const { rows } = await sql<Record<string, number>>`
      select (select count(*) from tasks) as tasks, (select count(*) from sessions) as sessions,
        (select count(*) from attempts) as attempts, (select count(*) from results) as results,
        (select count(*) from artifacts) as artifacts, (select count(*) from callbacks) as callbacks
    `.execute(database.db)
    return rows[0]!
  }
  const idsOf = async () => (await listTasks(database.db, { limit: 1000 })).tasks.map(({ taskId }) => taskId).toSorted()

  describe('deleting', () => {
    test('an ended task is deleted with all rows, and each file to remove is returned once', async () => {
      const leases = await finish('t', 3, { artifacts: 2, callback: 'http://trainer.test/' })
      await finish('other', 1)
      expect(await driver.dispatch.deleteTask('t')).toEqual({ kind: 'deleted', sessions: 3, bytes: 60 })
      expect(await findTask(database.db, 't')).toBeUndefined()
      const paths = await clearAll('t')
      const expected = leases.flatMap(({ sessionId }) => [
        `results/${sessionId}-1`,
        `artifacts/${sessionId}/0`,
        `artifacts/${sessionId}/1`,
      ])
      expect(paths.toSorted()).toEqual(expected.toSorted())
      expect(await findKnownFiles(database.db, paths)).toEqual(new Set())
      expect(await findSession(database.db, leases[0]!.sessionId)).toBeUndefined()
      const one = { sessions: 1, attempts: 1, results: 1, artifacts: 1 }
      expect(await countRows()).toEqual({ ...one, tasks: 2, callbacks: 0 })
      expect(await auditTables(database)).toEqual([])
      const { events } = await readEvents(database.db, { limit: 100, taskId: 't' })
      expect(events.at(-1)).toMatchObject({ type: 'task.deleted', data: { task_id: 't', status: 'deleted' } })
    })

    test('a running or unknown task is not deleted', async () => {
      await driver.submit('t', 1)
      expect(await driver.dispatch.deleteTask('t')).toEqual({ kind: 'running' })
      expect(await driver.dispatch.deleteTask('none')).toEqual({ kind: 'unknown-task' })
      await driver.dispatch.cancelTask('early', { registerIfMissing: true })
      expect(await driver.dispatch.deleteTask('early')).toEqual({ kind: 'unknown-task' })
      await driver.dispatch.cancelTask('t')
      expect(await driver.dispatch.deleteTask('t')).toMatchObject({ kind: 'deleted', sessions: 1 })
      expect(await driver.dispatch.deleteTask('t')).toEqual({ kind: 'unknown-task' })
      expect(await clearAll()).toEqual([])
    })

    test('a late submission is refused until the tombstone is pruned', async () => {
      await finish('t')
      await driver.dispatch.deleteTask('t')
      const submit = (instruction?: string) =>
        driver.dispatch.enqueue([{ task: makeTask('t', 1, instruction === undefined ? {} : { instruction }) }])
      expect(await submit()).toEqual([{ taskId: 't', kind: 'deleted' }])
      await clearAll()
      expect(await submit()).toEqual([{ taskId: 't', kind: 'deleted' }])
      expect(await submit('something else')).toEqual([{ taskId: 't', kind: 'deleted' }])
      expect(await driver.dispatch.cancelTask('t')).toBeUndefined()
      expect(await driver.dispatch.cancelTask('t', { registerIfMissing: true })).toBe('cancelled')
      expect(await driver.dispatch.retryTask('t', ['ERROR'])).toEqual({ kind: 'unknown-task' })
      expect(await driver.dispatch.updateTask('t', { priority: 1 })).toBe('unknown-task')
      driver.wall += 1001
      expect(await driver.dispatch.prune({ tombstonesOlderThanMs: 1000 })).toBe(0)
      expect(await driver.dispatch.prune({ deletedOlderThanMs: 1000 })).toBe(1)
      expect(await submit()).toEqual([{ taskId: 't', kind: 'created' }])
    })

    test('late results of its sessions are refused, before and after their rows are cleared', async () => {
      await driver.submit('t', 2)
      const [first, late] = await driver.take(2)
      await driver.end(first!)
      await driver.dispatch.cancelTask('t')
      await driver.dispatch.deleteTask('t')
      expect(await driver.end(late!)).toEqual({ kind: 'refused', reason: 'cancelled' })
      expect(await driver.end(first!)).toEqual({ kind: 'duplicate' })
      expect(await driver.dispatch.retrySession(late!.sessionId)).toEqual({ kind: 'unknown-session' })
      await clearAll()
      expect(await driver.end(late!)).toEqual(unknown)
      expect(await driver.end(first!)).toEqual(unknown)
      expect(await driver.renew('n1', [late!])).toEqual([{ ...late, kind: 'lost' }])
      expect(await driver.dispatch.retrySession(late!.sessionId)).toEqual({ kind: 'unknown-session' })
      expect(await driver.dispatch.cancelSession(late!.sessionId)).toBe(false)
    })

    test('many sessions and artifacts are cleared in batches, and the tombstone is not pruned before', async () => {
      await finish('many', 120, { artifacts: 0 })
      await finish('heavy', 1, { artifacts: 2500 })
      await driver.dispatch.deleteTask('many')
      await driver.dispatch.deleteTask('heavy')
      driver.wall += 10
      expect(await driver.dispatch.prune({ deletedOlderThanMs: 1 })).toBe(0)
      const sizes: number[] = []
      for (;;) {
        const cleared = await driver.dispatch.clearDeleted()
        if (cleared === undefined) break
        sizes.push(cleared.paths.length)
        expect(await auditTables(database)).toEqual([])
      }
      expect(sizes.toSorted((a, b) => a - b)).toEqual([20, 50, 50, 501, 1000, 1000])
      expect(await driver.dispatch.prune({ deletedOlderThanMs: 1 })).toBe(2)
      expect(Object.values(await countRows())).toEqual([0, 0, 0, 0, 0, 0])
    })

    test('concurrent deletes and clears have the effect of one', async () => {
      for (let i = 0; i < 12; i += 1) await finish(`t${i}`, 4)
      const other = new DispatchDriver(database)
      const deletions = Array.from({ length: 24 }, (_, i) => (i % 2 ? driver : other).dispatch.deleteTask(`t${i % 12}`))
      const kinds = (await Promise.all(deletions)).map(({ kind }) => kind)
      expect(kinds.filter((kind) => kind === 'deleted')).toHaveLength(12)
      expect(kinds.filter((kind) => kind === 'unknown-task')).toHaveLength(12)
      const paths = (await Promise.all(Array.from({ length: 6 }, () => clearAll()))).flat()
      expect(new Set(paths).size).toBe(paths.length)
      // A clear that skipped a locked task may have ended before the others.
      paths.push(...(await clearAll()))
      expect(paths).toHaveLength(12 * 4 * 2)
      expect((await listSessions(database.db, { limit: 9 })).sessions).toEqual([])
      expect(await auditTables(database)).toEqual([])
    })

    test('a concurrent delete and retry are serialised', async () => {
      const rounds = Array.from({ length: 12 }, async (_, i) => {
        await driver.submit(`t${i}`, 2)
        await driver.dispatch.cancelTask(`t${i}`)
        const [deleted, retried] = await Promise.all([
          driver.dispatch.deleteTask(`t${i}`),
          driver.dispatch.retryTask(`t${i}`, ['CANCELLED']),
        ])
        expect([deleted.kind, retried.kind]).toEqual(
          deleted.kind === 'deleted' ? ['deleted', 'unknown-task'] : ['running', 'retried'],
        )
      })
      await Promise.all(rounds)
      await clearAll()
      expect(await auditTables(database)).toEqual([])
    })
  })

  describe('retention', () => {
    test('depends on the time since the task ended, not since its submit', async () => {
      await driver.submit('long', 1)
      const [lease] = await driver.take(1)
      await finish('early')
      driver.wall += 2 * DAY
      await driver.end(lease!)
      const policy = { olderThanMs: DAY, keepAtLeastMs: 0 }
      expect(await driver.dispatch.retire(policy)).toEqual(['early'])
      expect(await driver.dispatch.retire(policy)).toEqual([])
      driver.wall += 2 * DAY
      expect(await driver.dispatch.retire(policy)).toEqual(['long'])
    })

    test('skips running tasks, retried tasks and tasks with a pending callback', async () => {
      await finish('told', 1, { callback: 'http://trainer.test/' })
      const [call] = await claimCallbacks(database.db, { claimMs: 1e9, limit: 9 }, driver.wall)
      await settleCallback(database.db, call!.id, { kind: 'delivered' })
      await finish('owed', 1, { callback: 'http://trainer.test/' })
      await driver.submit('again', 1)
      await driver.dispatch.cancelTask('again')
      await driver.submit('running', 1)
      driver.wall += 2 * DAY
      await driver.dispatch.retryTask('again', ['CANCELLED'])
      const policy = { olderThanMs: DAY, maxBytes: 0, keepAtLeastMs: 0 }
      expect(await driver.dispatch.retire(policy)).toEqual(['told'])
      expect(await driver.dispatch.retire(policy)).toEqual([])
      const [owed] = await claimCallbacks(database.db, { claimMs: 1e9, limit: 9 }, driver.wall)
      await settleCallback(database.db, owed!.id, { kind: 'dead', error: 'nobody there' })
      expect(await requeueCallback(database.db, owed!.id, driver.wall)).toBe(true)
      expect(await driver.dispatch.retire(policy)).toEqual([])
      await settleCallback(database.db, owed!.id, { kind: 'dead', error: 'nobody there' })
      expect(await driver.dispatch.retire(policy)).toEqual(['owed'])
      expect(await idsOf()).toEqual(['again', 'running'])
    })

    test('deletes the oldest tasks above the size limit, but none that has just ended', async () => {
      for (let i = 0; i < 6; i += 1) {
        await finish(`t${i}`, 2)
        driver.wall += 1000
      }
      const policy = { maxBytes: 100, keepAtLeastMs: 4500 }
      // Six times thirty bytes; only the two oldest may be deleted, though three exceed the limit.
      expect(await driver.dispatch.retire(policy)).toEqual(['t0', 't1'])
      expect(await driver.dispatch.retire(policy)).toEqual([])
      driver.wall += 10_000
      expect(await driver.dispatch.retire(policy)).toEqual(['t2'])
      expect(await driver.dispatch.retire(policy)).toEqual([])
      expect(await idsOf()).toEqual(['t3', 't4', 't5'])
    })

    test('two servers that retire concurrently delete no more than necessary', async () => {
      for (let i = 0; i < 30; i += 1) await finish(`t${i}`, 1)
      driver.wall += 1000
      const other = new DispatchDriver(database)
      other.wall = driver.wall
      const policy = { maxBytes: 15 * 10, keepAtLeastMs: 0 }
      await Promise.all([driver, other, driver, other].map(({ dispatch }) => dispatch.retire(policy)))
      await driver.dispatch.retire(policy)
      expect(await idsOf()).toHaveLength(10)
    })

    test('a server whose clock is far ahead of the database’s deletes nothing by age', async () => {
      driver.wall = Date.now()
      await finish('t')
      driver.wall += 400 * DAY
      expect(await driver.dispatch.retire({ olderThanMs: DAY, keepAtLeastMs: 0 })).toEqual([])
    })

    test('the number of rows does not grow with the number of tasks processed', async () => {
      const policy = { olderThanMs: 2 * DAY, keepAtLeastMs: DAY }
      const sizes: number[] = []
      for (let day = 0; day < 40; day += 1) {
        for (let i = 0; i < 5; i += 1) await finish(`d${day}-${i}`, 2, { callback: 'http://trainer.test/' })
        for (const { id } of await claimCallbacks(database.db, { claimMs: 1e9, limit: 99 }, driver.wall)) {
          await settleCallback(database.db, id, { kind: 'delivered' })
        }
        while ((await driver.dispatch.retire(policy)).length > 0);
        await clearAll()
        const limits = { tombstonesOlderThanMs: DAY, deletedOlderThanMs: DAY, eventsOlderThanMs: 2 * DAY }
        await driver.dispatch.prune({ ...limits, deliveredCallbacksOlderThanMs: 7 * DAY })
        const { rows } = await sql<{ n: number }>`select count(*) as n from events`.execute(database.db)
        sizes.push(Object.values(await countRows()).reduce((sum, n) => sum + n, rows[0]!.n))
        driver.wall += DAY
      }
      expect(Math.max(...sizes.slice(10))).toBeLessThanOrEqual(Math.max(...sizes.slice(0, 10)))
      expect((await listEndings(database.db, 'd39-0', { limit: 9 })).length).toBe(2)
      expect(await auditTables(database)).toEqual([])
    })
  })
}
