import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { rm } from 'node:fs/promises'
import { join } from 'node:path'
import { RolloutError } from '../../model/failure.ts'
import { makeTask, startTestServer, TestNode, type TestServer } from '../../../test/support/rollout-server.ts'

let at: TestServer
let node: TestNode
let serial = 0
beforeAll(async () => {
  at = await startTestServer()
  node = await TestNode.join(at.client, 'n1')
})
afterAll(() => at?.[Symbol.asyncDispose]())

const newId = () => `t${++serial}`
const byTask = (id: string) => ({ params: { task_id: id } })
const refusal = (code: string, status: number) => ({ failure: { code, status } })

/** A new task, and the orders of all its sessions. */
async function submitAndLease(samples: number, more: object = {}) {
  const id = newId()
  await at.client.submitTask({ body: { ...makeTask(id, samples), ...more } })
  const orders = await node.lease(samples)
  expect(orders).toHaveLength(samples)
  return { id, orders }
}

describe('submitting', () => {
  test('the same task twice is one task while it runs', async () => {
    const { id, orders } = await submitAndLease(1)
    expect(await at.client.submitTask({ body: makeTask(id) })).toEqual({ task_id: id, status: 'running' })
    expect(await node.lease(4)).toEqual([])
    await node.complete(orders[0]!)
  })

  test('a repeat with the same idempotency key is the same task, also after it ended or was deleted', async () => {
    const id = newId()
    const submit = () => at.client.submitTask({ body: makeTask(id), idempotencyKey: 'once' })
    await submit()
    const [order] = await node.lease(1)
    await node.complete(order!)
    expect(await submit()).toEqual({ task_id: id, status: 'completed' })
    await at.client.deleteTask(byTask(id))
    await expect(submit()).rejects.toMatchObject(refusal('request.conflict', 409))
    expect(await node.lease(4)).toEqual([])
  })

  test('an ended task is run again with the same or another body, and the older run gets another id', async () => {
    const { id, orders } = await submitAndLease(2)
    for (const order of orders) await node.complete(order)
    const first = await at.client.getTask(byTask(id))
    const body = { ...makeTask(id, 1), instruction: 'Something else.' }
    expect(await at.client.submitTask({ body })).toEqual({
      task_id: id,
      status: 'running',
      warnings: [expect.stringContaining(`${id}~1`)],
    })
    const running = await at.client.getTask(byTask(id))
    expect(running).toMatchObject({ status: 'running', total_sessions: 1, completed_sessions: 0, results: [] })
    expect(await at.client.getTask(byTask(`${id}~1`))).toEqual({ ...first, task_id: `${id}~1` })
    const [order] = await node.lease(4)
    expect(order!.task).toMatchObject({ task_id: id, instruction: 'Something else.' })
    await node.complete(order!)
    await at.client.submitTask({ body })
    expect((await at.client.getTask(byTask(`${id}~2`))).results).toMatchObject([{ session_id: order!.sessionId }])
    expect((await at.client.getTask(byTask(`${id}~1`))).results).toHaveLength(2)
    await at.client.cancelTask(byTask(id))
  })

  test('a late result of an older run is refused or a duplicate, and does not affect the new run', async () => {
    const { id, orders } = await submitAndLease(2, { early_stop_min_usable_sessions: 1 })
    await node.completeInline(orders[0]!)
    await at.client.submitTask({ body: makeTask(id) })
    await expect(node.completeInline(orders[1]!)).rejects.toMatchObject(refusal('request.stale', 409))
    expect(await node.completeInline(orders[0]!)).toEqual({ kind: 'duplicate' })
    expect((await at.client.getTask(byTask(id))).results).toEqual([])
    await at.client.cancelTask(byTask(id))
  })

  test('a deleted task can be submitted again', async () => {
    const { id, orders } = await submitAndLease(1)
    await node.complete(orders[0]!)
    await at.client.deleteTask(byTask(id))
    expect(await at.client.submitTask({ body: makeTask(id) })).toMatchObject({ status: 'running' })
    await at.client.cancelTask(byTask(id))
  })

  test('the response to a submit warns of steps that will have no network', async () => {
    const runtime = { prepare: [{ type: 'exec' as const, command: 'npm install' }] }
    const [id, other] = [newId(), newId()]
    const answer = await at.client.submitTask({ body: { ...makeTask(id), runtime } })
    expect(answer.warnings).toEqual([expect.stringContaining('runtime.allow_internet')])
    const quiet = { ...makeTask(other), runtime: { ...runtime, allow_internet: false } }
    expect((await at.client.submitTask({ body: quiet })).warnings).toBeUndefined()
    for (const each of [id, other]) await at.client.cancelTask(byTask(each))
  })

  test('a task that no registered node can run is refused with 503, or queued with the reason', async () => {
    const id = newId()
    const body = { ...makeTask(id), runtime: { backend: 'apptainer', image: 'a.sif' } }
    const refused = at.client.submitTask({ body })
    await expect(refused).rejects.toMatchObject(refusal('request.no-node', 503))
    await expect(refused).rejects.toThrow(/sandboxes of kind apptainer/)
    const { outcomes } = await at.client.submitBatch({ body: { tasks: [body, makeTask(`${id}-other`)] } })
    expect(outcomes).toMatchObject([{ outcome: 'no-node' }, { outcome: 'created' }])
    const queued = await at.client.submitTask({ body, query: { unrunnable: 'queue' } })
    expect(queued).toMatchObject({ status: 'running', warnings: [expect.stringContaining('apptainer')] })
    expect((await at.client.listTaskSessions(byTask(id))).unrunnable).toMatch(/apptainer/)
    expect((await at.client.listTaskSessions(byTask(`${id}-other`))).unrunnable).toBeNull()
    await at.client.cancelTask(byTask(id))
    await at.client.cancelTask(byTask(`${id}-other`))
  })

  test('eval_sampling_seed_base sets a different seed for each sample, and an invalid seed is refused', async () => {
    const { id, orders } = await submitAndLease(3, {
      sampling: { temperature: 0 },
      metadata: { eval_sampling_seed_base: 4_000_000_000 },
    })
    expect(new Set(orders.map(({ task }) => task.sampling?.seed))).toEqual(new Set([4e9, 4e9 + 1, 4e9 + 2]))
    expect(orders[0]!.task).toMatchObject({ sampling: { temperature: 0 } })
    await at.client.cancelTask(byTask(id))
    for (const seed of [-1, 1.5, true, 'seven']) {
      const body = { ...makeTask(newId()), metadata: { eval_sampling_seed_base: seed } }
      await expect(at.client.submitTask({ body })).rejects.toMatchObject(refusal('request.malformed', 422))
    }
  })

  test('another body with the id of a running task is refused with 409', async () => {
    const { id, orders } = await submitAndLease(1)
    const body = { ...makeTask(id), instruction: 'Something else.' }
    await expect(at.client.submitTask({ body })).rejects.toMatchObject(refusal('request.conflict', 409))
    await node.complete(orders[0]!)
  })

  test('fields for the server are removed from the task that nodes get', async () => {
    const more = {
      requires: [],
      max_failures: 2,
      policy_version: 3,
      staleness_limit: 9,
      metadata: { agent_timeout: 7 },
    }
    const { orders } = await submitAndLease(1, more)
    expect(orders[0]!.task).toMatchObject({ budgets: { agent: 7 }, metadata: { agent_timeout: 7 } })
    expect(orders[0]!.task).not.toHaveProperty('max_failures')
    expect(orders[0]!.task).not.toHaveProperty('requires')
    await node.complete(orders[0]!)
  })

  test('a task requires its labels and those of its sandbox', async () => {
    const [plain, rich] = [newId(), newId()]
    const runtime = { backend: 'docker', image: 'swe:42', gpus: 1 }
    await at.client.submitTask({
      body: { ...makeTask(rich), requires: ['big'], runtime },
      query: { unrunnable: 'queue' },
    })
    await at.client.submitTask({ body: makeTask(plain) })
    expect((await node.lease(9)).map(({ task }) => task.task_id)).toEqual([plain])
    const almost = await TestNode.join(at.client, 'almost', ['big', 'runtime:docker'])
    expect(await almost.lease(9)).toEqual([])
    const able = await TestNode.join(at.client, 'able', ['big', 'gpu', 'runtime:docker', 'more'])
    expect((await able.lease(9)).map(({ task }) => task.task_id)).toEqual([rich])
    await at.client.cancelTask(byTask(plain))
    await at.client.cancelTask(byTask(rich))
  })

  test('a callback URL that is not allowed is refused before anything is stored', async () => {
    const body = { ...makeTask(newId()), callback_url: 'http://example.com/' }
    const refused = at.client.submitTask({ body })
    await expect(refused).rejects.toMatchObject({ failure: { code: 'request.malformed', status: 422 } })
    await expect(at.client.getTask(byTask(body.task_id))).rejects.toMatchObject(refusal('request.not-found', 404))
  })

  test('a batch returns the outcome of each task', async () => {
    const [a, b] = [newId(), newId()]
    await at.client.submitTask({ body: makeTask(a) })
    const tasks = [makeTask(a), { ...makeTask(a), instruction: 'Else.' }, makeTask(b)]
    const { outcomes } = await at.client.submitBatch({ body: { tasks } })
    expect(outcomes.map(({ outcome }) => outcome)).toEqual(['same', 'conflict', 'created'])
    await at.client.cancelTask(byTask(a))
    await at.client.cancelTask(byTask(b))
  })

  test('a batch with one invalid callback URL stores nothing', async () => {
    const [a, b] = [newId(), newId()]
    const tasks = [makeTask(a), { ...makeTask(b), callback_url: 'http://example.com/' }]
    await expect(at.client.submitBatch({ body: { tasks } })).rejects.toMatchObject({ code: 'request.malformed' })
    await expect(at.client.getTask(byTask(a))).rejects.toMatchObject({ code: 'request.not-found' })
  })

  test('a task that was cancelled before its submit is refused', async () => {
    const id = newId()
    await expect(at.client.cancelTask(byTask(id))).rejects.toMatchObject(refusal('request.not-found', 404))
    const cancelled = await at.client.cancelTask({ ...byTask(id), query: { register_if_missing: true } })
    expect(cancelled).toMatchObject({ task_id: id, status: 'cancelled', total_sessions: 0 })
    await expect(at.client.submitTask({ body: makeTask(id) })).rejects.toMatchObject(refusal('request.conflict', 409))
  })

  test('a submit beyond the quota is refused with 429, and accepted when sessions have ended', async () => {
    const quota = { max_queued_sessions: 2, max_running_sessions: null }
    const token = { params: { token: 'open' } }
    await at.client.putQuota({ ...token, body: quota })
    const id = newId()
    try {
      const refused = at.strict.submitTask({ body: makeTask(id, 3) })
      await expect(refused).rejects.toMatchObject(refusal('request.over-quota', 429))
      const batch = at.strict.submitBatch({ body: { tasks: [makeTask(`${id}a`, 1), makeTask(`${id}b`, 2)] } })
      await expect(batch).rejects.toMatchObject(refusal('request.over-quota', 429))
      await at.client.submitTask({ body: makeTask(id, 2) })
      const { quotas } = await at.client.listQuotas()
      expect(quotas).toContainEqual({ token: 'open', ...quota, queued_sessions: 2, running_sessions: 0 })
    } finally {
      await at.client.putQuota({ ...token, body: { ...quota, max_queued_sessions: null } })
      await at.client.cancelTask(byTask(id))
    }
  })
})

describe('waiting for a task', () => {
  test('responds when more sessions have ended, and when the task has', async () => {
    const { id, orders } = await submitAndLease(2)
    const more = at.client.getTask({ ...byTask(id), query: { wait: 60, known_completed: 0 } })
    const all = at.client.getTask({ ...byTask(id), query: { wait: 60 } })
    await node.complete(orders[0]!)
    expect(await more).toMatchObject({ status: 'running', completed_sessions: 1, results: [{ status: 'COMPLETED' }] })
    await node.complete(orders[1]!)
    expect(await all).toMatchObject({ status: 'completed', completed_sessions: 2 })
  })

  test('responds with the current state after the wait', async () => {
    const { id, orders } = await submitAndLease(1)
    expect(await at.client.getTask({ ...byTask(id), query: { wait: 0.05 } })).toMatchObject({ status: 'running' })
    await node.complete(orders[0]!)
  })

  test('ends when the client disconnects', async () => {
    const { id, orders } = await submitAndLease(1)
    const gone = new AbortController()
    const waiting = at.client.getTask({ ...byTask(id), query: { wait: 60 }, signal: gone.signal })
    await expect.poll(() => at.server.waiting).toBe(1)
    gone.abort(new Error('gone'))
    await expect(waiting).rejects.toThrow('gone')
    await expect.poll(() => at.server.waiting).toBe(0)
    await node.complete(orders[0]!)
  })
})

describe('results', () => {
  test('come in order of sample, or as a stream in order of acceptance, exactly as the node wrote them', async () => {
    const { id, orders } = await submitAndLease(3)
    const turned = [orders[2]!, orders[0]!, orders[1]!]
    for (const order of turned) await node.complete(order, { result: { metadata: { by: order.sessionId } } })
    const task = await at.client.getTask(byTask(id))
    expect(task.results.map(({ metadata }) => metadata['by'])).toEqual(orders.map(({ sessionId }) => sessionId))
    expect(task.results[0]?.trajectory.traces[0]?.prompt_messages).toEqual([{ role: 'user', content: 'é\n"\u2028' }])
    const lines = await Array.fromAsync(at.client.streamTaskResults({ ...byTask(id), query: { skip: 1 } }))
    expect(lines).toEqual(task.results.slice(0, 2))
  })

  test('by reference lists the files without the results', async () => {
    const { id, orders } = await submitAndLease(2)
    for (const order of orders) await node.complete(order)
    const task = await at.client.getTask({ ...byTask(id), query: { results: 'reference' } })
    expect(task.results).toEqual([])
    const first = await at.client.listTaskResults({ ...byTask(id), query: { limit: 1 } })
    expect(first.results).toHaveLength(1)
    const second = await at.client.listTaskResults({ ...byTask(id), query: { limit: 1, cursor: first.next_cursor } })
    expect(second.next_cursor).toBeUndefined()
    expect([...first.results, ...second.results].map(({ path }) => path)).toEqual(task.result_paths)
  })

  test('are streamed line by line until the task has ended', async () => {
    const { id, orders } = await submitAndLease(3)
    const lines = at.client.streamTaskResults({ ...byTask(id), query: { follow: true } })
    for (const order of orders) {
      const next = lines.next()
      await node.complete(order)
      expect((await next).value).toMatchObject({ session_id: order.sessionId })
    }
    expect(await lines.next()).toMatchObject({ done: true })
  })

  test('a result with line breaks is one line of the stream', async () => {
    const { id, orders } = await submitAndLease(1)
    const { sessionId, task } = orders[0]!
    const trajectory = { status: 'COMPLETED', metadata: { text: 'a\nb' }, traces: [] }
    const result = { session_id: sessionId, task_id: task.task_id, status: 'COMPLETED', trajectory, timing: {} }
    await node.complete(orders[0]!, { text: JSON.stringify(result, null, 2).replaceAll('\n', '\r\n') })
    const lines = await Array.fromAsync(at.client.streamTaskResults(byTask(id)))
    expect(lines).toMatchObject([{ trajectory: { metadata: { text: 'a\nb' } } }])
  })

  test('of a task that failed because of infrastructure are ERROR; the task is completed for NVIDIA’s trainer and failed for ours', async () => {
    const { id, orders } = await submitAndLease(1, { max_failures: 1 })
    const { failure } = new RolloutError('runtime.gone', 'The sandbox is gone.')
    await node.complete(orders[0]!, { status: 'ERROR', failure })
    const task = await at.client.getTask(byTask(id))
    expect(task).toMatchObject({ status: 'completed', polar_status: 'failed', results: [{ status: 'ERROR' }] })
    expect((await at.client.listTasks({ query: { search: id } })).tasks).toMatchObject([{ status: 'failed' }])
  })

  test('of sessions cancelled by early stop have NVIDIA’s early-stop fields and the task metadata', async () => {
    const { id, orders } = await submitAndLease(3, { early_stop_min_usable_sessions: 1, metadata: { group_id: 7 } })
    await node.complete(orders[1]!)
    const { results } = await at.client.getTask(byTask(id))
    expect(results.map(({ status }) => status)).toEqual(['ERROR', 'COMPLETED', 'ERROR'])
    expect(results[2]).toMatchObject({
      session_id: orders[2]!.sessionId,
      polar_status: 'CANCELLED',
      error: expect.stringMatching(/^early_stop_cancelled: /),
      metadata: { group_id: 7, early_stop_cancelled: true, fully_masked: true, early_stop_min_usable_sessions: 1 },
      trajectory: { status: 'ERROR', traces: [], metadata: { early_stop_cancelled: true } },
    })
  })

  test('of sessions without a result are generated, so that there is one for each', async () => {
    const { id, orders } = await submitAndLease(2)
    await node.complete(orders[0]!)
    const cancelled = await at.client.cancelTask(byTask(id))
    expect(cancelled).toMatchObject({ status: 'cancelled', total_sessions: 2, completed_sessions: 2 })
    expect(cancelled.results).toMatchObject([
      { session_id: orders[0]!.sessionId, status: 'COMPLETED' },
      {
        session_id: orders[1]!.sessionId,
        status: 'ERROR',
        polar_status: 'CANCELLED',
        trajectory: { status: 'ERROR', traces: [], metadata: { task_metadata: orders[1]!.task.metadata } },
        failure: { code: 'session.cancelled' },
      },
    ])
    expect(cancelled.results[1]!.metadata).not.toHaveProperty('early_stop_cancelled')
    expect(await at.client.getSessionResult({ params: { session_id: orders[1]!.sessionId } })).toEqual(
      cancelled.results[1],
    )
  })

  test('a result with a lost file does not make the others unreadable', async () => {
    const { id, orders } = await submitAndLease(2)
    for (const order of orders) await node.complete(order)
    const { result_paths } = await at.client.getTask(byTask(id))
    await rm(join(at.dir, 'files', result_paths[0]!))
    const task = await at.client.getTask(byTask(id))
    expect(task.results).toMatchObject([
      { session_id: orders[0]!.sessionId, status: 'ERROR', failure: { code: 'store.corrupt' } },
      { session_id: orders[1]!.sessionId, status: 'COMPLETED' },
    ])
    expect(at.problems.splice(0).map(({ msg }) => msg)).toEqual(['stored session result cannot be read'])
  })

  test('of an unknown task are not found', async () => {
    const gone = byTask('nobody-knows')
    await expect(at.client.getTask(gone)).rejects.toMatchObject({ code: 'request.not-found' })
    await expect(at.client.listTaskResults(gone)).rejects.toMatchObject({ code: 'request.not-found' })
    await expect(at.client.listTaskSessions(gone)).rejects.toMatchObject({ code: 'request.not-found' })
    await expect(Array.fromAsync(at.client.streamTaskResults(gone))).rejects.toMatchObject({
      code: 'request.not-found',
    })
  })
})

describe('updating a task', () => {
  test('a later early stop that is reached ends the task', async () => {
    const { id, orders } = await submitAndLease(3)
    await node.complete(orders[0]!)
    const body = { dispatch_priority: 7, early_stop_min_usable_sessions: 1 }
    const task = await at.client.updateTask({ ...byTask(id), body })
    expect(task).toMatchObject({ status: 'completed', dispatch_priority: 7, cancelled_sessions: 2, usable_sessions: 1 })
    await expect(at.client.updateTask({ ...byTask(id), body })).rejects.toMatchObject(refusal('request.conflict', 409))
    await expect(at.client.updateTask({ ...byTask('no'), body })).rejects.toMatchObject({ code: 'request.not-found' })
  })

  test('failed sessions are retried, and both endings keep their position in the stream', async () => {
    const { id, orders } = await submitAndLease(2, { max_failures: 1 })
    const failure = { code: 'runtime.gone', message: 'gone', status: 500 } as const
    await node.complete(orders[0]!, { status: 'ERROR', failure, grade: undefined })
    await node.complete(orders[1]!)
    const retry = { ...byTask(id), body: { statuses: ['ERROR' as const] } }
    expect(await at.client.retryTask(retry)).toEqual({ task_id: id, status: 'running', retried_sessions: 1 })
    expect(await at.client.retryTask(retry)).toMatchObject({ retried_sessions: 0 })
    const [again] = await node.lease(1)
    expect(again).toMatchObject({ sessionId: orders[0]!.sessionId, attempt: 2 })
    await node.complete(again!)
    const task = await at.client.getTask(byTask(id))
    expect(task).toMatchObject({ status: 'completed', completed_sessions: 2 })
    expect(task.results.map(({ status }) => status)).toEqual(['COMPLETED', 'COMPLETED'])
    const lines = await Array.fromAsync(at.client.streamTaskResults(byTask(id)))
    expect(lines.map(({ session_id, status }) => [session_id, status])).toEqual([
      [orders[0]!.sessionId, 'ERROR'],
      [orders[1]!.sessionId, 'COMPLETED'],
      [orders[0]!.sessionId, 'COMPLETED'],
    ])
  })
})

describe('lists', () => {
  test('tasks can be filtered, in pages', async () => {
    const prefix = `list-${newId()}`
    for (let i = 0; i < 5; i++) await at.client.submitTask({ body: makeTask(`${prefix}-${i}`, 2) })
    const seen: string[] = []
    for (let cursor: string | undefined; ;) {
      const page = await at.client.listTasks({ query: { search: prefix, status: 'running', limit: 2, cursor } })
      seen.push(...page.tasks.map(({ task_id }) => task_id))
      cursor = page.next_cursor
      if (cursor === undefined) break
    }
    expect(seen).toEqual([4, 3, 2, 1, 0].map((i) => `${prefix}-${i}`))
    expect((await at.client.listTasks({ query: { search: prefix, harness: 'codex' } })).tasks).toEqual([])
    expect((await at.client.listTasks({ query: { status: 'cancelling' } })).tasks).toEqual([])
    const { sessions } = await at.client.listTaskSessions(byTask(seen[0]!))
    expect(sessions).toMatchObject([
      { sample: 0, attempt: 0, status: 'REGISTERED', node_id: null },
      { sample: 1, attempt: 0 },
    ])
    for (const id of seen) await at.client.cancelTask(byTask(id))
  })
})
