import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import {
  makeTask,
  registration,
  startTestServer,
  TestNode,
  type TestServer,
} from '../../../test/support/rollout-server.ts'
import type { SessionOrder } from '../../model/session-order.ts'

let at: TestServer
let serial = 0
const tasks: string[] = []
beforeAll(async () => {
  at = await startTestServer({ leaseMs: 60_000 })
})
afterEach(async () => {
  for (const id of tasks.splice(0)) await at.client.cancelTask({ params: { task_id: id } })
})
afterAll(async () => {
  await at?.[Symbol.asyncDispose]()
  expect(at.problems).toEqual([])
})

async function submit(samples = 1, more: object = {}): Promise<string> {
  const id = `t${++serial}`
  tasks.push(id)
  await at.client.submitTask({ body: { ...makeTask(id, samples), ...more } })
  return id
}

const newNode = (labels: string[] = [], bootId = 'boot') => TestNode.join(at.client, `n${++serial}`, labels, bootId)
const toLease = ({ sessionId, attempt }: SessionOrder) => ({ session_id: sessionId, attempt })

describe('a node', () => {
  test('that joins gets its lease time, and is listed with its labels', async () => {
    const node = new TestNode(at.client, `n${++serial}`)
    const joined = await node.join(['gpu', 'runtime:docker'])
    expect(joined).toMatchObject({ lease_ms: 60_000, outcomes: [], node: { healthy: true, draining: false } })
    const nodes = await at.client.listNodes()
    const info = nodes.find(({ node_id }) => node_id === node.id)
    expect(info).toMatchObject({ ...registration, labels: ['gpu', 'runtime:docker'], leased_sessions: 0 })
    expect(Date.now() - Date.parse(info!.last_heartbeat)).toBeLessThan(60_000)
    expect(await at.client.getNode({ params: node.params })).toEqual(info)
  })

  test('that is unknown must join', async () => {
    const stranger = new TestNode(at.client, 'stranger')
    const notFound = { failure: { code: 'request.not-found', status: 404 } }
    await expect(stranger.lease()).rejects.toMatchObject(notFound)
    await expect(at.client.renewLeases({ params: stranger.params, body: { renewals: [] } })).rejects.toMatchObject(
      notFound,
    )
    await expect(at.client.getNode({ params: stranger.params })).rejects.toMatchObject(notFound)
    await expect(at.client.drainNode({ params: stranger.params })).rejects.toMatchObject(notFound)
    await expect(at.client.removeNode({ params: stranger.params })).rejects.toMatchObject(notFound)
    const beat = { params: stranger.params, body: { metrics: {} } }
    await expect(at.client.heartbeatNode(beat)).rejects.toMatchObject(notFound)
    expect(await at.client.leaveNode({ params: stranger.params })).toMatchObject({ requeued_sessions: 0 })
  })

  test('of NVIDIA Polar can register, send heartbeats and is listed', async () => {
    const node_id = `nv${++serial}`
    expect(await at.client.registerNode({ body: { ...registration, node_id } })).toMatchObject({
      node_id,
      healthy: true,
    })
    const metrics = { run_inflight: 3 }
    const beat = await at.client.heartbeatNode({ params: { node_id }, body: { metrics } })
    expect(beat.metrics).toMatchObject({ run_inflight: 3, init_inflight: 0 })
  })

  test('that drains gets no lease, learns of it at once while it waits, and leaves', async () => {
    const node = await newNode()
    const waiting = at.client.leaseSessions({ params: node.params, body: { free_slots: 1, wait: 60 } })
    await expect.poll(() => at.server.waiting).toBe(1)
    expect(await at.client.drainNode({ params: node.params })).toMatchObject({ draining: true })
    expect((await waiting).orders).toEqual([])
    await submit()
    const asked = await at.client.leaseSessions({ params: node.params, body: { free_slots: 1, wait: 60 } })
    expect(asked).toEqual({ orders: [], draining: true })
    expect(await at.client.renewLeases({ params: node.params, body: { renewals: [] } })).toMatchObject({
      draining: true,
    })
    await at.client.leaveNode({ params: node.params })
    await expect(at.client.getNode({ params: node.params })).rejects.toMatchObject({ code: 'request.not-found' })
  })

  test('that is removed while healthy stays until it leaves', async () => {
    const node = await newNode()
    expect(await at.client.removeNode({ params: node.params })).toMatchObject({ draining: true })
    expect(await at.client.getNode({ params: node.params })).toMatchObject({ draining: true })
  })

  test('that leaves requeues its sessions without a failure', async () => {
    await submit(2)
    const node = await newNode()
    const orders = await node.lease(2)
    expect(await at.client.leaveNode({ params: node.params })).toEqual({ node_id: node.id, requeued_sessions: 2 })
    const other = await newNode()
    const again = await other.lease(2)
    expect(again.map(({ sessionId }) => sessionId).sort()).toEqual(orders.map(({ sessionId }) => sessionId).sort())
    const { attempts } = await at.client.getSession({ params: { session_id: orders[0]!.sessionId } })
    expect(attempts).toMatchObject([
      { attempt: 1, ending: 'released', failure: null },
      { attempt: 2, ending: null },
    ])
  })

  test('whose id another process has joined with is refused', async () => {
    const node = await newNode([], 'first')
    await node.join([], 'second')
    const stale = { failure: { code: 'request.stale', status: 409 } }
    const body = { free_slots: 1, boot_id: 'first' }
    await expect(at.client.leaseSessions({ params: node.params, body })).rejects.toMatchObject(stale)
    const renew = { params: node.params, body: { renewals: [], boot_id: 'first' } }
    await expect(at.client.renewLeases(renew)).rejects.toMatchObject(stale)
    await expect(at.client.leaveNode({ params: node.params, query: { boot_id: 'first' } })).rejects.toMatchObject(stale)
    expect((await at.client.getNode({ params: node.params })).node_id).toBe(node.id)
  })
})

describe('leasing', () => {
  test('waits for work, and responds as soon as there is some', async () => {
    const node = await newNode()
    const waiting = node.lease(2, 60)
    await expect.poll(() => at.server.waiting).toBe(1)
    const id = await submit(1)
    expect((await waiting).map(({ task }) => task.task_id)).toEqual([id])
    expect(at.server.waiting).toBe(0)
  })

  test('responds without work after the wait', async () => {
    const node = await newNode()
    expect(await node.lease(1, 0.05)).toEqual([])
  })

  test('releases leases of a node that disconnected', async () => {
    const node = await newNode()
    const gone = new AbortController()
    const waiting = node.lease(1, 60, gone.signal)
    await expect.poll(() => at.server.waiting).toBe(1)
    gone.abort(new Error('gone'))
    await expect(waiting).rejects.toThrow('gone')
    await expect.poll(() => at.server.waiting).toBe(0)
    await submit(1)
    const other = await newNode()
    expect(await other.lease(1, 5)).toHaveLength(1)
  })

  test('requeues leases whose response was lost', async () => {
    await submit(2)
    const node = await newNode()
    const [lost] = await node.lease(1)
    const body = { free_slots: 2, holding: [] }
    const { orders } = await at.client.leaseSessions({ params: node.params, body })
    const again = orders.find(({ order }) => order.sessionId === lost!.sessionId)
    expect(orders).toHaveLength(2)
    expect(again?.order.attempt).toBe(2)
  })

  test('distributes sessions over waiting nodes, each to one node', async () => {
    const nodes = await Promise.all(Array.from({ length: 8 }, () => newNode()))
    const waiting = nodes.map((node) => node.lease(2, 60))
    await expect.poll(() => at.server.waiting).toBe(8)
    await submit(16)
    const ids = (await Promise.all(waiting)).flat().map(({ sessionId }) => sessionId)
    const rest = (await Promise.all(nodes.map((node) => node.lease(2)))).flat().map(({ sessionId }) => sessionId)
    expect(new Set([...ids, ...rest]).size).toBe(16)
    expect(ids.length + rest.length).toBe(16)
  })
})

describe('renewing', () => {
  test('returns the outcome of each lease, and stores the progress', async () => {
    await submit(3)
    const node = await newNode()
    const orders = await node.lease(3)
    await at.client.cancelSession({ params: { session_id: orders[1]!.sessionId } })
    await node.complete(orders[2]!)
    const renewals = [
      { ...toLease(orders[0]!), status: 'RUNNING' as const, progress: { calls: 3, tokens: 812 } },
      toLease(orders[1]!),
      toLease(orders[2]!),
      { session_id: 'nobody', attempt: 1 },
    ]
    const metrics = { run_inflight: 1 }
    const { outcomes } = await at.client.renewLeases({ params: node.params, body: { renewals, metrics } })
    expect(outcomes.map(({ kind }) => kind)).toEqual(['held', 'cancelled', 'accepted', 'lost'])
    const session = await at.client.getSession({ params: { session_id: orders[0]!.sessionId } })
    expect(session).toMatchObject({ status: 'RUNNING', node_id: node.id, progress: { calls: 3, tokens: 812 } })
    expect((await at.client.getNode({ params: node.params })).metrics.run_inflight).toBe(1)
  })

  test('a session with a token beyond the staleness limit of its task is cancelled by the next version', async () => {
    await submit(2, { staleness_limit: 1 })
    const node = await newNode()
    const orders = await node.lease(2)
    const renewals = orders.map((order, i) => ({
      ...toLease(order),
      progress: { calls: 1, tokens: 5, oldest_version: i },
    }))
    await at.client.renewLeases({ params: node.params, body: { renewals } })
    // The nodes of this file confirm nothing.
    const put = at.client.putPolicy({ body: { version: 2, timeout_seconds: 0 } })
    await expect(put).rejects.toMatchObject({ code: 'server.unconfirmed' })
    const { outcomes } = await at.client.renewLeases({ params: node.params, body: { renewals } })
    expect(outcomes.map(({ kind }) => kind)).toEqual(['cancelled', 'held'])
  })

  test('a restarted node keeps the attempts that it holds and loses the rest', async () => {
    await submit(2)
    const node = await newNode([], 'before')
    const orders = await node.lease(2)
    const { outcomes } = await node.join([], 'after', [toLease(orders[0]!)])
    expect(outcomes).toMatchObject([{ ...toLease(orders[0]!), kind: 'held' }])
    expect(await node.complete(orders[0]!)).toMatchObject({ kind: 'accepted' })
    await expect(node.complete(orders[1]!)).rejects.toMatchObject({ code: 'request.stale' })
  })

  test('a released session can be leased by another node', async () => {
    await submit(1)
    const node = await newNode()
    const [order] = await node.lease(1)
    const body = { leases: [toLease(order!), { session_id: 'nobody', attempt: 1 }] }
    expect(await at.client.releaseLeases({ params: node.params, body })).toEqual({ released: [toLease(order!)] })
    const other = await newNode()
    expect(await other.lease(1)).toMatchObject([{ sessionId: order!.sessionId, attempt: 2 }])
  })
})

test('a session whose node stops renewing is leased to another node', async () => {
  await using quick = await startTestServer({ leaseMs: 3000 })
  await quick.client.submitTask({ body: makeTask('t') })
  const silent = await TestNode.join(quick.client, 'silent')
  const [order] = await silent.lease(1)
  const other = await TestNode.join(quick.client, 'other')
  let again: SessionOrder | undefined
  while (again === undefined) [again] = await other.lease(1, 30)
  expect(again).toMatchObject({ sessionId: order!.sessionId, attempt: 2 })
  await expect(silent.complete(order!)).rejects.toMatchObject({ failure: { code: 'request.stale', status: 409 } })
  expect(await other.complete(again)).toMatchObject({ kind: 'accepted', task_status: 'completed' })
})
