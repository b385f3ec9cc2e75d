import { createServer } from 'node:http'
import { once } from 'node:events'
import type { AddressInfo } from 'node:net'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { makeTask, startTestServer, TestNode, type TestServer } from '../../test/support/rollout-server.ts'
import { routes } from '../api/routes/index.ts'
import type { Client } from '../client/client.ts'
import { TaskResult } from '../model/task.ts'

const tokens = {
  trainer: 'trainer-token-0123456789',
  node: 'node-token-0123456789',
  read: 'read-token-0123456789',
} as const

let at: TestServer
let trainer: Client
let node: Client
let read: Client
beforeAll(async () => {
  at = await startTestServer({
    access: {
      tokens: [
        { name: 'slime', token: tokens.trainer, scopes: ['trainer'] },
        { name: 'nodes', token: tokens.node, scopes: ['node'] },
        { name: 'eyes', token: tokens.read, scopes: ['read'] },
      ],
    },
    quotas: { slime: { maxQueuedSessions: 5 } },
    callbacks: { allowedHosts: ['loopback'], attempts: 1 },
    version: '1.2.3',
  })
  trainer = at.as({ token: tokens.trainer, attempts: 1 })
  node = at.as({ token: tokens.node, attempts: 1 })
  read = at.as({ token: tokens.read, attempts: 1 })
})
afterAll(async () => {
  await at?.[Symbol.asyncDispose]()
  expect(at.problems).toEqual([])
})

const refusal = (code: string, status: number) => ({ failure: { code, status } })

test('health and OpenAPI need no token', async () => {
  expect(await at.client.getHealth()).toEqual({ status: 'ok', nodes: 0 })
  const document = await at.client.getOpenApi()
  expect(document['info']).toMatchObject({ version: '1.2.3' })
  const operations = Object.values(document['paths'] as Record<string, object>).flatMap((path) => Object.keys(path))
  expect(operations).toHaveLength(Object.keys(routes).length)
})

test('a request without a token, or with a token of another scope, is refused', async () => {
  await expect(at.client.listTasks()).rejects.toMatchObject(refusal('request.unauthorized', 401))
  const stranger = at.as({ token: 'a-token-that-nobody-knows' })
  await expect(stranger.listTasks()).rejects.toMatchObject(refusal('request.unauthorized', 401))
  await expect(read.submitTask({ body: makeTask('no') })).rejects.toMatchObject(refusal('request.forbidden', 403))
  await expect(node.submitTask({ body: makeTask('no') })).rejects.toMatchObject(refusal('request.forbidden', 403))
  await expect(TestNode.join(trainer, 'n')).rejects.toMatchObject(refusal('request.forbidden', 403))
})

test('the status shows running tasks, queued sessions and nodes', async () => {
  await trainer.submitTask({ body: makeTask('status', 3) })
  const worker = await TestNode.join(node, 'n1')
  const orders = await worker.lease(1)
  expect(await read.getStatus()).toMatchObject({
    tasks: { status: 'running' },
    pipeline: { pending_sessions: 2, running_sessions: 1 },
    nodes: { nodes: [{ node_id: 'n1', leased_sessions: 1 }] },
  })
  expect(orders).toHaveLength(1)
  await trainer.cancelTask({ params: { task_id: 'status' } })
})

test('quotas are those of the settings until a request changes them', async () => {
  const { quotas } = await read.listQuotas()
  expect(quotas.find(({ token }) => token === 'slime')).toMatchObject({ max_queued_sessions: 5 })
  const tooMany = trainer.submitTask({ body: makeTask('many', 6) })
  await expect(tooMany).rejects.toMatchObject({
    failure: { code: 'request.over-quota', status: 429, retryAfterSeconds: 5 },
  })
  const body = { max_queued_sessions: 6, max_running_sessions: 1 }
  const changed = await trainer.putQuota({ params: { token: 'slime' }, body })
  expect(changed).toEqual({ token: 'slime', ...body, queued_sessions: 0, running_sessions: 0 })
  await trainer.submitTask({ body: makeTask('many', 6) })
  const worker = await TestNode.join(node, 'n2')
  expect(await worker.lease(6)).toHaveLength(1)
  expect(await worker.lease(6)).toHaveLength(0)
  await trainer.cancelTask({ params: { task_id: 'many' } })
  const nobody = trainer.putQuota({ params: { token: 'nobody' }, body })
  await expect(nobody).rejects.toMatchObject(refusal('request.not-found', 404))
  await trainer.putQuota({
    params: { token: 'slime' },
    body: { max_queued_sessions: null, max_running_sessions: null },
  })
})

test('the policy version only increases, and cancels stale tasks', async () => {
  await TestNode.join(node, 'n0')
  const policy = await read.getPolicy()
  expect(policy).toMatchObject({ change: 0, version: 0, paused: false, mode: 'drain' })
  expect(policy.nodes).toContainEqual({
    node_id: 'n0',
    change: null,
    version: null,
    in_flight: 0,
    confirmed: false,
    lost: false,
  })
  await trainer.submitTask({ body: { ...makeTask('old'), policy_version: 1, staleness_limit: 1 } })
  // The nodes of this file confirm nothing.
  for (const version of [3, 2]) {
    const put = trainer.putPolicy({ body: { version, timeout_seconds: 0 } })
    await expect(put).rejects.toMatchObject(refusal('server.unconfirmed', 504))
    expect(await read.getPolicy()).toMatchObject({ version: 3, change: 1 })
  }
  expect(await read.getTask({ params: { task_id: 'old' } })).toMatchObject({ status: 'cancelled' })
  const late = trainer.submitTask({ body: { ...makeTask('late'), policy_version: 1, staleness_limit: 1 } })
  await expect(late).rejects.toMatchObject(refusal('request.stale', 409))
  const { outcomes } = await trainer.submitBatch({
    body: { tasks: [{ ...makeTask('late'), policy_version: 1, staleness_limit: 1 }] },
  })
  expect(outcomes).toEqual([{ task_id: 'late', outcome: 'stale' }])
})

test('the callback contains the whole task; a dead callback can be resent', async () => {
  const bodies: unknown[] = []
  let isUp = false
  const server = createServer((request, response) => {
    const parts: Buffer[] = []
    request.on('data', (part: Buffer) => parts.push(part))
    request.on('end', () => {
      if (isUp) bodies.push(JSON.parse(Buffer.concat(parts).toString()))
      response.writeHead(isUp ? 200 : 500).end()
    })
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  const callback_url = `http://127.0.0.1:${port}/callback/task_result`
  await trainer.submitTask({ body: { ...makeTask('called', 2), callback_url } })
  const worker = await TestNode.join(node, 'n3')
  const [first] = await worker.lease(1)
  await worker.complete(first!)
  await trainer.cancelTask({ params: { task_id: 'called' } })
  const dead = async () => (await read.listCallbacks({ query: { task_id: 'called' } })).callbacks
  await expect
    .poll(dead, { timeout: 30_000 })
    .toMatchObject([{ url: callback_url, state: 'dead', tries: 1, next_at: null }])
  isUp = true
  const [{ callback_id } = { callback_id: 0 }] = await dead()
  expect(await trainer.resendCallback({ params: { callback_id } })).toMatchObject({ state: 'waiting' })
  await expect.poll(() => bodies.length, { timeout: 30_000 }).toBe(1)
  expect(Object.keys(bodies[0] as object)).toEqual(['task_id', 'status', 'polar_status', 'results', 'result_paths'])
  expect(TaskResult.parse(bodies[0])).toMatchObject({
    task_id: 'called',
    status: 'cancelled',
    results: [{ status: 'COMPLETED' }, { status: 'ERROR', polar_status: 'CANCELLED' }],
  })
  const delivered = async () => (await read.listCallbacks({ query: { state: 'delivered' } })).callbacks.length
  await expect.poll(delivered, { timeout: 30_000 }).toBe(1)
  expect(await trainer.resendCallback({ params: { callback_id } })).toMatchObject({ state: 'delivered' })
  const unknown = trainer.resendCallback({ params: { callback_id: 999 } })
  await expect(unknown).rejects.toMatchObject(refusal('request.not-found', 404))
  server.close()
  const said = at.problems.splice(0).map(({ msg }) => msg)
  expect(said).toEqual(['callback is dead; it can be resent with the API'])
})
