import { zstdDecompressSync } from 'node:zlib'
import { request } from 'undici'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { makeTask, startTestServer, TestNode, type TestServer } from '../../../test/support/rollout-server.ts'

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

const failure = { code: 'runtime.gone', message: 'gone', status: 500 } as const
const refusal = (code: string, status: number) => ({ failure: { code, status } })
const bySession = (id: string) => ({ params: { session_id: id } })

async function leaseAll(samples: number, more: object = {}) {
  const id = `t${++serial}`
  await at.client.submitTask({ body: { ...makeTask(id, samples), ...more } })
  return { id, orders: await node.lease(samples) }
}

test('sessions can be filtered, newest first and in pages', async () => {
  const { id, orders } = await leaseAll(3, { max_failures: 1 })
  await node.complete(orders[0]!, { status: 'ERROR', failure, grade: undefined })
  await node.complete(orders[1]!)
  const ids = async (query: object) =>
    (await at.client.listSessions({ query: { task_id: id, ...query } })).sessions.map(({ session_id }) => session_id)
  const all = orders.map(({ sessionId }) => sessionId)
  expect(await ids({})).toEqual(all.toSorted().reverse())
  expect(await ids({ status: ['ERROR', 'TIMEOUT'] })).toEqual([all[0]])
  expect(await ids({ failure: 'runtime.gone' })).toEqual([all[0]])
  expect(await ids({ failure: 'runtime.out-of-disk' })).toEqual([])
  expect(await ids({ harness: 'shell', node_id: 'n1' })).toHaveLength(3)
  expect(await ids({ harness: 'codex' })).toEqual([])
  const page = await at.client.listSessions({ query: { task_id: id, limit: 2 } })
  expect(await ids({ cursor: page.next_cursor })).toHaveLength(1)
  await node.complete(orders[2]!)
})

test('getSession() includes all attempts', async () => {
  const { orders } = await leaseAll(1)
  await node.complete(orders[0]!)
  const session = await at.client.getSession(bySession(orders[0]!.sessionId))
  expect(session).toMatchObject({ status: 'COMPLETED', reward: 1, attempt: 1, node_id: 'n1', error: null })
  expect(session.attempts).toMatchObject([{ attempt: 1, node_id: 'n1', ending: 'accepted', failure: null }])
  expect(session.attempts[0]!.ended_at).toBeGreaterThanOrEqual(session.attempts[0]!.leased_at!)
  await expect(at.client.getSession(bySession('nobody'))).rejects.toMatchObject(refusal('request.not-found', 404))
})

test('a session is cancelled once; an ended session does not change', async () => {
  const { id, orders } = await leaseAll(2)
  const [first, second] = orders.map(({ sessionId }) => sessionId) as [string, string]
  expect(await at.client.cancelSession(bySession(first))).toMatchObject({ status: 'CANCELLED', cancelled: true })
  expect(await at.client.cancelSession(bySession(first))).toMatchObject({ status: 'CANCELLED', cancelled: false })
  await node.complete(orders[1]!)
  expect(await at.client.cancelSession(bySession(second))).toMatchObject({ status: 'COMPLETED', cancelled: false })
  await expect(at.client.cancelSession(bySession('nobody'))).rejects.toMatchObject({ code: 'request.not-found' })
  expect(await at.client.getTask({ params: { task_id: id } })).toMatchObject({ status: 'completed' })
})

test('a session is retried unless the agent caused its end', async () => {
  const { orders } = await leaseAll(2, { max_failures: 1 })
  const [failed, good] = orders.map(({ sessionId }) => sessionId) as [string, string]
  const retry = (id: string) => at.strict.retrySession(bySession(id))
  await expect(retry(failed)).rejects.toMatchObject(refusal('request.conflict', 409))
  await node.complete(orders[0]!, { status: 'ERROR', failure, grade: undefined })
  await node.complete(orders[1]!)
  expect(await retry(failed)).toMatchObject({ session_id: failed, status: 'REGISTERED' })
  await expect(retry(failed)).rejects.toMatchObject(refusal('request.conflict', 409))
  await expect(retry(good)).rejects.toMatchObject(refusal('request.conflict', 409))
  await expect(retry('nobody')).rejects.toMatchObject(refusal('request.not-found', 404))
  const [again] = await node.lease(1)
  expect(again).toMatchObject({ sessionId: failed, attempt: 2 })
  await node.complete(again!)
})

test('the result is available once the session has ended, and is sent as stored to clients that accept zstd', async () => {
  const { orders } = await leaseAll(1)
  const { sessionId } = orders[0]!
  await expect(at.client.getSessionResult(bySession(sessionId))).rejects.toMatchObject(refusal('request.conflict', 409))
  const text = { prompt: 'x'.repeat(50_000) }
  await node.complete(orders[0]!, { result: { metadata: text } })
  const result = await at.client.getSessionResult(bySession(sessionId))
  expect(result).toMatchObject({ session_id: sessionId, metadata: text })
  const url = `${at.server.url}/sessions/${sessionId}/result`
  const packed = await request(url, { headers: { 'accept-encoding': 'zstd' } })
  expect(packed.headers['content-encoding']).toBe('zstd')
  const bytes = Buffer.from(await packed.body.arrayBuffer())
  expect(Number(packed.headers['content-length'])).toBe(bytes.length)
  expect(JSON.parse(zstdDecompressSync(bytes).toString())).toEqual(result)
  const plain = await request(url)
  expect(plain.headers['content-encoding']).toBeUndefined()
  expect(await plain.body.json()).toEqual(result)
})
