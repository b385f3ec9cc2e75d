import { expect, test } from 'vitest'
import { FakeClock } from '../../../test/support/fake-clock.ts'
import type { LeaseResponse, LeasedOrder, LeaseRequest, NodeMembership } from '../../store/dispatch/port.ts'
import { LeaseQueue, type QueuedLeaseRequest } from './lease-queue.ts'

/** A LeaseQueue over sessions in memory. */
function setUp() {
  const clock = new FakeClock()
  const queue: string[] = []
  const requested: string[] = []
  const requests: LeaseRequest[] = []
  let membership: NodeMembership = 'member'
  let gate: Promise<void> = Promise.resolve()
  const leaseQueue = new LeaseQueue({
    clock,
    monotonic: () => clock.now(),
    maxSilenceMs: 20_000,
    async lease(nodeId, request): Promise<LeaseResponse> {
      requested.push(nodeId)
      requests.push(structuredClone(request))
      await gate
      const orders = queue.splice(0, request.freeSlots).map((id) => ({ order: { sessionId: id } }) as LeasedOrder)
      return { orders, node: membership }
    },
  })
  const never = new AbortController().signal
  const lease = (nodeId: string, more: Partial<QueuedLeaseRequest> = {}, waitMs = 30_000, signal = never) =>
    leaseQueue.lease(nodeId, { freeSlots: 1, labels: ['a'], ...more }, waitMs, signal)
  const ids = ({ orders }: LeaseResponse) => orders.map(({ order }) => order.sessionId)
  return {
    clock,
    queue,
    requested,
    requests,
    leaseQueue,
    lease,
    ids,
    setMembership: (value: NodeMembership) => void (membership = value),
    hold() {
      const { promise, resolve } = Promise.withResolvers<void>()
      gate = promise
      return resolve
    },
  }
}

test('a waiting node gets a session as soon as one is queued', async () => {
  const { clock, queue, leaseQueue, lease, ids } = setUp()
  const waiting = lease('n1')
  await clock.advance(1000)
  expect(leaseQueue.waiting).toBe(1)
  queue.push('s1')
  leaseQueue.notify()
  expect(ids(await waiting)).toEqual(['s1'])
  expect(leaseQueue.waiting).toBe(0)
  expect(clock.pending).toBe(0)
})

test('the response is empty after the wait, and immediate without a wait', async () => {
  const { clock, lease, ids, leaseQueue } = setUp()
  expect(ids(await lease('n1', {}, 0))).toEqual([])
  expect(ids(await clock.run(lease('n1', {}, 5000)))).toEqual([])
  expect(leaseQueue.waiting).toBe(0)
})

test('a notification without work tries only a few of a thousand waiting nodes of one kind', async () => {
  const { clock, requested, leaseQueue, lease } = setUp()
  const all = Array.from({ length: 1000 }, (_, i) => lease(`n${i}`))
  await clock.advance(10)
  expect(requested).toHaveLength(1000)
  requested.length = 0
  leaseQueue.notify()
  await clock.advance(10)
  expect(requested.length).toBeLessThanOrEqual(4)
  await clock.run(Promise.all(all))
})

test('sessions go to nodes in order of arrival, and every kind is tried', async () => {
  const { clock, queue, leaseQueue, lease, ids } = setUp()
  const all = ['n1', 'n2', 'n3'].map((id) => lease(id, { labels: [id] }))
  await clock.advance(10)
  queue.push('s1', 's2')
  leaseQueue.notify()
  expect((await clock.run(Promise.all(all))).map(ids)).toEqual([['s1'], ['s2'], []])
})

test('work that arrives during an empty lease statement is not missed', async () => {
  const { clock, queue, leaseQueue, lease, ids, hold } = setUp()
  const open = hold()
  const waiting = lease('n1')
  await clock.advance(10)
  leaseQueue.notify()
  open()
  queue.push('s1')
  expect(ids(await waiting)).toEqual(['s1'])
})

test('sessions leased while the node disconnects are returned to the caller, who can release them', async () => {
  const { clock, queue, lease, ids, hold } = setUp()
  const open = hold()
  const gone = new AbortController()
  const waiting = lease('n1', {}, 30_000, gone.signal)
  await clock.advance(10)
  queue.push('s1')
  gone.abort()
  open()
  expect(ids(await waiting)).toEqual(['s1'])
})

test('an aborted request ends at once and leases nothing', async () => {
  const { clock, queue, leaseQueue, lease, ids } = setUp()
  const gone = new AbortController()
  const waiting = lease('n1', {}, 30_000, gone.signal)
  await clock.advance(10)
  gone.abort()
  expect(ids(await waiting)).toEqual([])
  queue.push('s1')
  leaseQueue.notify()
  await clock.advance(10)
  expect(queue).toEqual(['s1'])
})

test('a second request of a node ends the first', async () => {
  const { clock, lease, ids, leaseQueue } = setUp()
  const first = lease('n1')
  await clock.advance(10)
  const second = lease('n1')
  expect(ids(await first)).toEqual([])
  await clock.advance(10)
  expect(leaseQueue.waiting).toBe(1)
  await clock.run(second)
})

test('a draining node gets its response at once and does not delay other nodes', async () => {
  const { clock, queue, leaseQueue, lease, ids, setMembership } = setUp()
  setMembership('draining')
  expect(await lease('n1')).toEqual({ orders: [], node: 'draining' })
  setMembership('member')
  const waiting = lease('n2')
  await clock.advance(10)
  queue.push('s1')
  leaseQueue.notify()
  expect(ids(await waiting)).toEqual(['s1'])
})

test('a request passes on the held leases only in its first try', async () => {
  const { clock, leaseQueue, requests, lease } = setUp()
  const waiting = lease('n1', { holding: [{ sessionId: 's0', attempt: 1 }] })
  await clock.advance(10)
  leaseQueue.notify()
  await clock.run(waiting)
  expect(requests.map(({ holding }) => holding?.length)).toEqual([1, undefined])
})

test('a node with idle slots is served before one that prefetches, each with the slots it can use', async () => {
  const { clock, queue, leaseQueue, lease, ids, requests } = setUp()
  const prefetching = lease('full', { freeSlots: 4, ahead: 4 })
  const idle = lease('idle', { freeSlots: 4, ahead: 3 })
  await clock.advance(10)
  requests.length = 0
  queue.push('s1', 's2')
  leaseQueue.notify()
  expect(ids(await idle)).toEqual(['s1'])
  expect(ids(await prefetching)).toEqual(['s2'])
  expect(requests.map(({ freeSlots }) => freeSlots)).toEqual([1, 4])
})

test('a node without recent requests gets no lease from an old request; a node that renews does', async () => {
  const { clock, queue, leaseQueue, lease, ids } = setUp()
  const frozen = lease('frozen', {}, 60_000)
  const alive = lease('alive', {}, 60_000)
  await clock.advance(15_000)
  leaseQueue.markAlive('alive')
  await clock.advance(15_000)
  queue.push('s1', 's2')
  leaseQueue.notify()
  expect(ids(await frozen)).toEqual([])
  expect(ids(await alive)).toEqual(['s1'])
  expect(ids(await lease('frozen', {}, 60_000))).toEqual(['s2'])
})
