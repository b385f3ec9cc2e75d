import { mkdir, readdir, rm, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { performance } from 'node:perf_hooks'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import {
  makeOutcome,
  makeResult,
  makeTask,
  startTestServer,
  TestNode,
  type TestServer,
} from '../../../test/support/rollout-server.ts'
import { type Clock, systemClock } from '../../lib/async/clock.ts'
import { randomIds } from '../../lib/random-ids.ts'
import type { SessionOrder } from '../../model/session-order.ts'
import { openDatabase } from '../../store/database.ts'
import { Dispatch } from '../../store/dispatch/port.ts'

const byTask = (id: string) => ({ params: { task_id: id } })
const bySession = ({ sessionId }: SessionOrder) => ({ params: { session_id: sessionId } })
const refusal = (code: string, status: number) => ({ failure: { code, status } })
const notFound = refusal('request.not-found', 404)

/** All results and artifacts on disk. */
async function filesOf(dir: string): Promise<string[]> {
  const below = async (folder: string): Promise<string[]> => {
    const entries = await readdir(join(dir, 'files', folder), { recursive: true, withFileTypes: true })
    return entries.filter((entry) => entry.isFile()).map(({ name }) => `${folder}/${name}`)
  }
  return [...(await below('results')), ...(await below('artifacts'))]
}

/** A clock whose one-minute jobs run on demand. */
function handClock(): Clock & { minute: () => void } {
  const due = new Set<() => void>()
  return {
    now: Date.now,
    after(ms, call) {
      if (ms !== 60_000) return systemClock.after(ms, call)
      due.add(call)
      return () => void due.delete(call)
    },
    minute() {
      const now = [...due]
      due.clear()
      for (const call of now) call()
    },
  }
}

/** An ended task with a result and two artifacts for each session. */
async function finishTask(
  node: TestNode,
  id: string,
  samples = 1,
  more: object = {},
  idempotencyKey?: string,
): Promise<SessionOrder[]> {
  await node.client.submitTask({ body: { ...makeTask(id, samples), ...more }, idempotencyKey })
  const orders = await node.lease(samples)
  for (const order of orders) {
    const paths = ['agent/log.txt', 'agent/deep/trace.json']
    const bytes = Buffer.from(`artifact of ${order.sessionId}`)
    const upload = await node.upload(order, bytes)
    const artifacts = paths.map((path) => ({ path, bytes: bytes.length, isCut: false }))
    const outcome = makeOutcome(order, node.id, { artifacts })
    const result = await node.upload(order, JSON.stringify(makeResult(outcome)))
    await node.client.completeSession({
      params: node.params,
      body: {
        outcome,
        result_upload_id: result,
        artifacts: paths.map((path) => ({ path, upload_id: upload })),
      },
    })
  }
  return orders
}

describe('deleting a task', () => {
  let at: TestServer
  let node: TestNode
  beforeAll(async () => {
    at = await startTestServer()
    node = await TestNode.join(at.client, 'n1')
  })
  afterAll(() => at?.[Symbol.asyncDispose]())

  test('removes its results and artifacts from disk, and keeps those of other tasks', async () => {
    const [other] = await finishTask(node, 'other')
    const orders = await finishTask(node, 'gone', 2)
    expect(await filesOf(at.dir)).toHaveLength(9)
    const deleted = await at.strict.deleteTask(byTask('gone'))
    expect(deleted).toMatchObject({ task_id: 'gone', deleted_sessions: 2 })
    expect(deleted.deleted_bytes).toBeGreaterThan(100)
    const left = await filesOf(at.dir)
    expect(left).toHaveLength(3)
    const folders = await readdir(join(at.dir, 'files/artifacts'), { recursive: true })
    expect(folders.filter((name) => orders.some(({ sessionId }) => name.includes(sessionId)))).toEqual([])
    await expect(at.strict.deleteTask(byTask('gone'))).rejects.toMatchObject(notFound)
    await expect(at.strict.getTask(byTask('gone'))).rejects.toMatchObject(notFound)
    await expect(at.strict.listTaskSessions(byTask('gone'))).rejects.toMatchObject(notFound)
    await expect(at.strict.cancelTask(byTask('gone'))).rejects.toMatchObject(notFound)
    await expect(at.strict.getSession(bySession(orders[0]!))).rejects.toMatchObject(notFound)
    await expect(at.strict.getSessionResult(bySession(orders[0]!))).rejects.toMatchObject(notFound)
    expect(await at.client.getTask(byTask('other'))).toMatchObject({ status: 'completed' })
    expect((await at.client.listArtifacts(bySession(other!))).artifacts).toHaveLength(2)
    expect(at.problems).toEqual([])
  })

  test('is refused while the task runs', async () => {
    await at.client.submitTask({ body: makeTask('running') })
    const refused = at.strict.deleteTask(byTask('running'))
    await expect(refused).rejects.toMatchObject({
      failure: { status: 409, message: expect.stringContaining('cancel it first') },
    })
    await at.client.cancelTask(byTask('running'))
    expect(await at.client.deleteTask(byTask('running'))).toMatchObject({ deleted_sessions: 1, deleted_bytes: 0 })
    await expect(at.strict.deleteTask(byTask('nobody-knows'))).rejects.toMatchObject(notFound)
  })

  test('makes a late repeat of the submit and late results fail', async () => {
    const idempotencyKey = 'the submit of late'
    const [order] = await finishTask(node, 'late', 1, {}, idempotencyKey)
    await at.client.deleteTask(byTask('late'))
    const submit = at.strict.submitTask({ body: makeTask('late'), idempotencyKey })
    await expect(submit).rejects.toMatchObject({
      failure: { code: 'request.conflict', status: 409, message: expect.stringContaining('has been deleted') },
    })
    const batch = await at.strict.submitBatch({ body: { tasks: [makeTask('late')] }, idempotencyKey })
    expect(batch.outcomes).toEqual([{ task_id: 'late', outcome: 'deleted' }])
    expect(await node.lease(4)).toEqual([])
    const strict = new TestNode(at.strict, node.id)
    await expect(strict.complete(order!)).rejects.toMatchObject(notFound)
    const outcome = makeOutcome(order!, node.id)
    const again = at.strict.completeSession({ params: node.params, body: { outcome } })
    await expect(again).rejects.toMatchObject(notFound)
    await expect(at.strict.postSessionResult({ body: makeResult(outcome) })).rejects.toMatchObject(notFound)
    expect((await filesOf(at.dir)).filter((name) => name.includes(order!.sessionId))).toEqual([])
    expect(at.problems).toEqual([])
  })

  test('cuts a reader of its results instead of ending the stream normally', async () => {
    const orders = await finishTask(node, 'read', 3)
    const lines = at.strict.streamTaskResults(byTask('read'))
    expect((await lines.next()).value).toMatchObject({ session_id: orders[0]!.sessionId })
    await at.client.deleteTask(byTask('read'))
    // Results sent before the deletion may arrive; the stream may end normally only if all arrived.
    const rest = Array.fromAsync(lines).then(
      (more) => more.length,
      () => 'cut off',
    )
    expect(['cut off', 2]).toContain(await rest)
    await expect(Array.fromAsync(at.strict.streamTaskResults(byTask('read')))).rejects.toMatchObject(notFound)
  })

  test('logs files that cannot be removed, and deletes the task anyway', async () => {
    const [order] = await finishTask(node, 'stuck')
    const { result_paths: paths } = await at.client.getTask({ ...byTask('stuck'), query: { results: 'reference' } })
    const path = join(at.dir, 'files', paths[0]!)
    // A folder cannot be unlinked, also by root.
    await rm(path)
    await mkdir(path)
    expect(await at.client.deleteTask(byTask('stuck'))).toMatchObject({ deleted_sessions: 1 })
    expect(at.problems.splice(0).map(({ msg }) => msg)).toEqual([
      'files of a deleted task could not be removed and will be swept',
    ])
    expect((await stat(path)).isDirectory()).toBe(true)
    expect((await filesOf(at.dir)).filter((name) => name.includes(order!.sessionId))).toEqual([])
    await rm(path, { recursive: true })
  })
})

describe('retention', () => {
  test('deletes old tasks with their files, but no running ones and none with a pending callback', async () => {
    const clock = handClock()
    await using at = await startTestServer({ clock, retention: { olderThanMs: 0, keepAtLeastMs: 0 } })
    const node = await TestNode.join(at.client, 'n1')
    for (let i = 0; i < 25; i += 1) await finishTask(node, `t${i}`)
    // No server listens there, so the callback stays pending.
    await finishTask(node, 'owed', 1, { callback_url: 'http://127.0.0.1:9/' })
    await at.client.submitTask({ body: makeTask('running') })
    expect(await filesOf(at.dir)).toHaveLength(26 * 3)
    clock.minute()
    await expect
      .poll(async () => (await at.client.listTasks()).tasks.map(({ task_id: id }) => id).toSorted(), {
        timeout: 20_000,
      })
      .toEqual(['owed', 'running'])
    await expect.poll(() => filesOf(at.dir)).toHaveLength(3)
    expect(at.problems).toEqual([])
  })

  test('deletes nothing without settings', async () => {
    const clock = handClock()
    await using at = await startTestServer({ clock })
    const node = await TestNode.join(at.client, 'n1')
    await finishTask(node, 'kept')
    clock.minute()
    await at.client.submitTask({ body: makeTask('later') })
    await at.client.cancelTask(byTask('later'))
    await at.client.deleteTask(byTask('later'))
    expect(await at.client.getTask(byTask('kept'))).toMatchObject({ status: 'completed', completed_sessions: 1 })
    expect(await filesOf(at.dir)).toHaveLength(3)
  })

  test('the next server removes what a crash left of a deleted task', async () => {
    const clock = handClock()
    await using at = await startTestServer()
    const node = await TestNode.join(at.client, 'n1')
    await finishTask(node, 'half', 3)
    await at.server[Symbol.asyncDispose]()
    const place = { dir: join(at.dir, 'database') }
    {
      await using database = await openDatabase(place)
      const monotonic = () => performance.now()
      const dispatch = new Dispatch({ database, clock: systemClock, monotonic, ids: randomIds(Date.now) })
      expect(await dispatch.deleteTask('half')).toMatchObject({ kind: 'deleted' })
    }
    expect(await filesOf(at.dir)).toHaveLength(9)
    await using next = await startTestServer({ database: place, filesDir: join(at.dir, 'files'), clock })
    await expect(next.strict.getTask(byTask('half'))).rejects.toMatchObject(notFound)
    clock.minute()
    await expect.poll(() => filesOf(at.dir)).toEqual([])
  })
})
