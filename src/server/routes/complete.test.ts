import { createHash } from 'node:crypto'
import { readdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { zstdCompressSync } from 'node:zlib'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import {
  makeOutcome,
  makeResult,
  makeTask,
  startTestServer,
  TestNode,
  type TestServer,
} from '../../../test/support/rollout-server.ts'
import type { SessionOrder } from '../../model/session-order.ts'

let at: TestServer
let node: TestNode
let serial = 0
beforeAll(async () => {
  at = await startTestServer()
  node = await TestNode.join(at.client, 'n1')
})
afterAll(async () => {
  await at?.[Symbol.asyncDispose]()
  expect(at.problems).toEqual([])
})

async function leaseOne(more: object = {}): Promise<SessionOrder> {
  await at.client.submitTask({ body: { ...makeTask(`t${++serial}`), ...more } })
  const [order] = await node.lease(1)
  return order!
}

const refusal = (code: string, status: number) => ({ failure: { code, status } })
const digestOf = (bytes: Uint8Array) => `sha256:${createHash('sha256').update(bytes).digest('hex')}`
const bySession = ({ sessionId }: SessionOrder) => ({ params: { session_id: sessionId } })

describe('completing a session', () => {
  test('twice, or with repeated uploads, has the effect of once', async () => {
    const order = await leaseOne()
    expect(await node.complete(order)).toMatchObject({ kind: 'accepted' })
    expect(await node.complete(order)).toEqual({ kind: 'duplicate' })
    const { results } = await at.client.getTask({ params: { task_id: order.task.task_id } })
    expect(results).toHaveLength(1)
  })

  test('ten times concurrently has the effect of once', async () => {
    const order = await leaseOne()
    const kinds = (await Promise.all(Array.from({ length: 10 }, () => node.complete(order)))).map(({ kind }) => kind)
    expect(kinds.filter((kind) => kind === 'accepted')).toHaveLength(1)
    expect(kinds.filter((kind) => kind === 'duplicate')).toHaveLength(9)
  })

  test('with an inline result needs one request, and stores the same as an upload', async () => {
    const order = await leaseOne()
    expect(await node.completeInline(order)).toMatchObject({ kind: 'accepted' })
    const params = { task_id: order.task.task_id }
    const [kept] = (await at.client.listTaskResults({ params, query: {} })).results
    expect(kept?.path).toMatch(new RegExp(`^results/../${order.sessionId}\\.1\\.json\\.zst$`))
    const stored = await readFile(join(at.dir, 'files', kept!.path))
    expect(kept).toMatchObject({ bytes: stored.length, digest: digestOf(stored) })
    expect(await readdir(join(at.dir, 'files', 'tmp'))).toEqual([])
    expect(await at.client.getSessionResult(bySession(order))).toEqual(makeResult(makeOutcome(order, node.id)))
  })

  test('again with the other transport has the effect of once', async () => {
    const [order, neighbour] = [await leaseOne(), await leaseOne()]
    await node.completeInline(order)
    expect(await node.complete(order)).toEqual({ kind: 'duplicate' })
    expect(await node.completeInline(order)).toEqual({ kind: 'duplicate' })
    await node.complete(neighbour)
    expect(await node.completeInline(neighbour)).toEqual({ kind: 'duplicate' })
    const other = node.completeInline(neighbour, { result: { metadata: { else: true } } })
    await expect(other).rejects.toMatchObject(refusal('request.stale', 409))
  })

  test('with both transports concurrently has the effect of once', async () => {
    const order = await leaseOne()
    const calls = Array.from({ length: 10 }, (_, i) =>
      i % 2 === 0 ? node.complete(order) : node.completeInline(order),
    )
    const kinds = (await Promise.all(calls)).map(({ kind }) => kind)
    expect(kinds.toSorted()).toEqual(['accepted', ...Array.from({ length: 9 }, () => 'duplicate')])
  })

  test('with an inline result that is too long, not base64, or also uploaded is refused', async () => {
    const order = await leaseOne()
    const outcome = makeOutcome(order, node.id)
    const complete = (body: object) => at.client.completeSession({ params: node.params, body: { outcome, ...body } })
    const result = zstdCompressSync(JSON.stringify(makeResult(outcome))).toString('base64')
    const wrong = [
      { result: Buffer.alloc(64 * 1024 + 3).toString('base64') },
      { result: 'A'.repeat(7 * 1024 * 1024) },
      { result: `${result.slice(0, -4)}*===` },
      { result: '' },
      { result, result_upload_id: await node.upload(order, JSON.stringify(makeResult(outcome))) },
    ]
    for (const body of wrong) await expect(complete(body)).rejects.toMatchObject(refusal('request.malformed', 422))
    expect(await complete({ result })).toMatchObject({ kind: 'accepted' })
  })

  test('with another result after the first is refused', async () => {
    const order = await leaseOne()
    await node.complete(order)
    const other = node.complete(order, { result: { metadata: { else: true } } })
    await expect(other).rejects.toMatchObject(refusal('request.stale', 409))
  })

  test('without a result is accepted, and the server generates a result', async () => {
    const order = await leaseOne({ max_failures: 1 })
    const failure = { code: 'runtime.gone', message: 'The sandbox is gone.', status: 500 } as const
    const outcome = makeOutcome(order, node.id, { status: 'ERROR', failure, grade: undefined, counts: undefined })
    const body = { outcome }
    expect(await at.client.completeSession({ params: node.params, body })).toMatchObject({ kind: 'accepted' })
    expect(await at.client.completeSession({ params: node.params, body })).toEqual({ kind: 'duplicate' })
    expect(await at.client.getSessionResult(bySession(order))).toMatchObject({ status: 'ERROR', failure })
  })

  test('that failed because of infrastructure queues a refill', async () => {
    const order = await leaseOne()
    const failure = { code: 'runtime.gone', message: 'gone', status: 500 } as const
    const spoilt = await node.complete(order, { status: 'ERROR', failure, grade: undefined })
    expect(spoilt).toEqual({ kind: 'accepted', is_refilled: true, task_status: 'running' })
    expect(await node.lease(1, 30)).toMatchObject([{ sessionId: order.sessionId, attempt: 2 }])
    const { attempts } = await at.client.getSession(bySession(order))
    expect(attempts).toMatchObject([
      { attempt: 1, ending: 'accepted', failure },
      { attempt: 2, ending: null },
    ])
    await at.client.cancelTask({ params: { task_id: order.task.task_id } })
  })

  test('that was cancelled, leased by another node or unknown is refused, and leaves no file', async () => {
    const files = async () => (await readdir(join(at.dir, 'files'), { recursive: true })).filter(isResult).length
    const isResult = (name: string) => name.startsWith('results') && name.endsWith('.zst')
    const [cancelled, released] = [await leaseOne(), await leaseOne()]
    const uploads = await Promise.all([cancelled, released].map((order) => node.upload(order, 'x')))
    await at.client.cancelSession(bySession(cancelled))
    const leases = [{ session_id: released.sessionId, attempt: 1 }]
    await at.client.releaseLeases({ params: node.params, body: { leases } })
    const before = await files()
    for (const [i, order] of [cancelled, released].entries()) {
      const body = { outcome: makeOutcome(order, node.id), result_upload_id: uploads[i]! }
      const completion = at.client.completeSession({ params: node.params, body })
      await expect(completion).rejects.toMatchObject(refusal('request.stale', 409))
      await expect(node.complete(order)).rejects.toMatchObject(refusal('request.stale', 409))
      await expect(node.completeInline(order)).rejects.toMatchObject(refusal('request.stale', 409))
    }
    expect(await files()).toBe(before)
    const unknown = { ...cancelled, sessionId: 'ses_nobody' }
    await expect(node.complete(unknown)).rejects.toMatchObject(refusal('request.not-found', 404))
    const body = { outcome: makeOutcome(unknown, node.id) }
    const completion = at.client.completeSession({ params: node.params, body })
    await expect(completion).rejects.toMatchObject(refusal('request.not-found', 404))
    await at.client.cancelTask({ params: { task_id: released.task.task_id } })
  })

  test('with a result of another session is refused, and the session stays leased', async () => {
    const order = await leaseOne()
    const outcome = makeOutcome(order, node.id)
    const result = makeResult(outcome)
    const trace = result.trajectory.traces[0]!
    const wrong = [
      '{',
      '[]',
      JSON.stringify({ ...result, session_id: 'ses_other' }),
      JSON.stringify({ ...result, task_id: 'other' }),
      JSON.stringify({ ...result, status: 'TIMEOUT' }),
      JSON.stringify({ ...result, node_id: 'other' }),
      JSON.stringify({ ...result, metadata: { polar: { attempt: 2 } } }),
      JSON.stringify({ ...result, trajectory: { ...result.trajectory, traces: [{ ...trace, loss_mask: [1] }] } }),
      '['.repeat(100_000),
      Buffer.from('this is not zstd'),
      zstdCompressSync(JSON.stringify(result)).subarray(0, -5),
      // The text is complete, and only an empty frame after it is truncated.
      Buffer.concat([zstdCompressSync(JSON.stringify(result)), zstdCompressSync('')]).subarray(0, -1),
    ]
    for (const text of wrong) {
      const upload = await node.upload(order, text)
      const completion = at.client.completeSession({ params: node.params, body: { outcome, result_upload_id: upload } })
      await expect(completion).rejects.toMatchObject(refusal('request.malformed', 422))
      const bytes = typeof text === 'string' ? zstdCompressSync(text) : text
      const body = { outcome, result: bytes.toString('base64') }
      const inline = at.client.completeSession({ params: node.params, body })
      await expect(inline).rejects.toMatchObject(refusal('request.malformed', 422))
    }
    expect(await node.complete(order)).toMatchObject({ kind: 'accepted' })
  })

  test('is allowed only for the node that holds it, and only with a final status', async () => {
    const order = await leaseOne()
    const complete = (outcome: object) =>
      at.client.completeSession({
        params: node.params,
        body: { outcome: { ...makeOutcome(order, node.id), ...outcome } },
      })
    await expect(complete({ nodeId: 'other' })).rejects.toMatchObject(refusal('request.malformed', 422))
    await expect(complete({ status: 'RUNNING' })).rejects.toMatchObject(refusal('request.malformed', 422))
    const other = await TestNode.join(at.client, 'other')
    const theirs = other.client.completeSession({
      params: other.params,
      body: { outcome: makeOutcome(order, other.id) },
    })
    await expect(theirs).rejects.toMatchObject(refusal('request.stale', 409))
    await node.complete(order)
  })

  test('needs complete uploads of the same attempt', async () => {
    const [order, neighbour] = [await leaseOne(), await leaseOne()]
    const body = (id: string) => ({ outcome: makeOutcome(order, node.id), result_upload_id: id })
    const complete = (id: string) => at.client.completeSession({ params: node.params, body: body(id) })
    await expect(complete('upl_nobody')).rejects.toMatchObject(refusal('request.not-found', 404))
    const theirs = await node.upload(neighbour, 'x')
    await expect(complete(theirs)).rejects.toMatchObject(refusal('request.malformed', 422))
    const half = await at.client.beginUpload({
      params: node.params,
      body: { session_id: order.sessionId, attempt: 1, bytes: 7, digest: `sha256:${'0'.repeat(64)}` },
    })
    await expect(complete(half.upload_id)).rejects.toMatchObject(refusal('request.conflict', 409))
    await node.complete(order)
    await node.complete(neighbour)
  })
})

describe('artifacts', () => {
  test('are stored with the session, and readable completely or in ranges', async () => {
    const order = await leaseOne()
    const log = Buffer.from('one\ntwo\nthree\n')
    const upload = await node.upload(order, log)
    const artifacts = [
      { path: 'logs/agent.txt', bytes: log.length, isCut: true },
      { path: 'copy.txt', bytes: log.length, isCut: false },
    ]
    const outcome = makeOutcome(order, node.id, { artifacts })
    const body = {
      outcome,
      result_upload_id: await node.upload(order, JSON.stringify(makeResult(outcome))),
      artifacts: artifacts.map(({ path }) => ({ path, upload_id: upload })),
    }
    const twice = { ...body, artifacts: [...body.artifacts, body.artifacts[0]!] }
    const double = at.client.completeSession({ params: node.params, body: twice })
    await expect(double).rejects.toMatchObject(refusal('request.malformed', 422))
    await at.client.completeSession({ params: node.params, body })
    expect(await at.client.completeSession({ params: node.params, body })).toEqual({ kind: 'duplicate' })
    const digest = digestOf(log)
    expect((await at.client.listArtifacts(bySession(order))).artifacts).toEqual([
      { path: 'copy.txt', bytes: log.length, is_cut: false, digest },
      { path: 'logs/agent.txt', bytes: log.length, is_cut: true, digest },
    ])
    const read = async (query: { offset?: number; length?: number }) =>
      new Response(
        await at.client.getArtifact({ ...bySession(order), query: { path: 'logs/agent.txt', ...query } }),
      ).text()
    expect(await read({})).toBe(log.toString())
    expect(await read({ offset: 4, length: 3 })).toBe('two')
    await expect(read({ offset: 1000 })).rejects.toMatchObject({ failure: { status: 416 } })
    const missing = at.client.getArtifact({ ...bySession(order), query: { path: 'no' } })
    await expect(missing).rejects.toMatchObject(refusal('request.not-found', 404))
  })
})

describe('a result posted by an NVIDIA Polar node', () => {
  test('is accepted once, with its reward', async () => {
    const order = await leaseOne()
    const { timing: _, ...result } = makeResult(makeOutcome(order, node.id))
    expect(await at.client.postSessionResult({ body: result })).toEqual({ status: 'accepted' })
    expect(await at.client.postSessionResult({ body: result })).toEqual({ status: 'accepted' })
    expect(await at.client.getSession(bySession(order))).toMatchObject({ status: 'COMPLETED', reward: 1 })
    const other = at.client.postSessionResult({ body: { ...result, metadata: { else: 1 } } })
    await expect(other).rejects.toMatchObject(refusal('request.stale', 409))
  })

  test('keeps unknown fields', async () => {
    const order = await leaseOne()
    const result = makeResult(makeOutcome(order, node.id))
    const body = { ...result, timing: { init_ms: 1, container_start_ms: 2 }, extra: { a: 1 } }
    await at.client.postSessionResult({ body })
    const response = await fetch(`${at.server.url}/sessions/${order.sessionId}/result`)
    expect(await response.json()).toMatchObject({ extra: { a: 1 }, timing: { container_start_ms: 2 } })
  })

  test('of an unknown or unfinished session is refused', async () => {
    const order = await leaseOne()
    const result = makeResult(makeOutcome(order, node.id))
    const unknown = at.client.postSessionResult({ body: { ...result, session_id: 'sk-polar-nobody' } })
    await expect(unknown).rejects.toMatchObject(refusal('request.not-found', 404))
    const early = at.client.postSessionResult({ body: { ...result, status: 'RUNNING' } })
    await expect(early).rejects.toMatchObject(refusal('request.malformed', 422))
    const theirs = at.client.postSessionResult({ body: { ...result, node_id: 'other' } })
    await expect(theirs).rejects.toMatchObject(refusal('request.stale', 409))
    const nobodys = at.client.postSessionResult({ body: { ...result, node_id: null } })
    await expect(nobodys).rejects.toMatchObject(refusal('request.malformed', 422))
    const task = at.client.postSessionResult({ body: { ...result, task_id: 'other' } })
    await expect(task).rejects.toMatchObject(refusal('request.malformed', 422))
    await node.complete(order)
  })
})
