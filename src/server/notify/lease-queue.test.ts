import { expect, test } from 'vitest'
import { FakeClock } from '../../../test/support/fake-clock.ts'
import type { LeaseAnswer, LeasedOrder, LeaseRoom, NodeStanding } from '../../store/dispatch/port.ts'
import { type DeskRoom, LeaseDesk } from './lease-queue.ts'

/** A queue in memory, and a desk before it. */
function setUp() {
  const clock = new FakeClock()
  const queue: string[] = []
  const asked: string[] = []
  const rooms: LeaseRoom[] = []
  let standing: NodeStanding = 'member'
  let gate: Promise<void> = Promise.resolve()
  const desk = new LeaseDesk({
    clock,
    monotonic: () => clock.now(),
    longestSilenceMs: 20_000,
    async lease(nodeId, room): Promise<LeaseAnswer> {
      asked.push(nodeId)
      rooms.push(structuredClone(room))
      await gate
      const orders = queue.splice(0, room.freeSlots).map((id) => ({ order: { sessionId: id } }) as LeasedOrder)
      return { orders, node: standing }
    },
  })
  const never = new AbortController().signal
  const take = (nodeId: string, more: Partial<DeskRoom> = {}, waitMs = 30_000, signal = never) =>
    desk.take(nodeId, { freeSlots: 1, labels: ['a'], ...more }, waitMs, signal)
  const ids = ({ orders }: LeaseAnswer) => orders.map(({ order }) => order.sessionId)
  return {
    clock,
    queue,
    asked,
    rooms,
    desk,
    take,
    ids,
    setStanding: (value: NodeStanding) => void (standing = value),
    hold() {
      const { promise, resolve } = Promise.withResolvers<void>()
      gate = promise
      return resolve
    },
  }
}

test('a node that waits is given work as soon as there is some', async () => {
  const { clock, queue, desk, take, ids } = setUp()
  const waiting = take('n1')
  await clock.advance(1000)
  expect(desk.waiting).toBe(1)
  queue.push('s1')
  desk.ring()
  expect(ids(await waiting)).toEqual(['s1'])
  expect(desk.waiting).toBe(0)
  expect(clock.pending).toBe(0)
})

test('nothing comes once the time is over, and nothing is waited for without one', async () => {
  const { clock, take, ids, desk } = setUp()
  expect(ids(await take('n1', {}, 0))).toEqual([])
  expect(ids(await clock.run(take('n1', {}, 5000)))).toEqual([])
  expect(desk.waiting).toBe(0)
})

test('of a thousand nodes of one kind that wait in vain, one is asked for when it rings', async () => {
  const { clock, asked, desk, take } = setUp()
  const all = Array.from({ length: 1000 }, (_, i) => take(`n${i}`))
  await clock.advance(10)
  expect(asked).toHaveLength(1000)
  asked.length = 0
  desk.ring()
  await clock.advance(10)
  expect(asked.length).toBeLessThanOrEqual(4)
  await clock.run(Promise.all(all))
})

test('what there is goes to those who came first, and each kind is asked for', async () => {
  const { clock, queue, desk, take, ids } = setUp()
  const all = ['n1', 'n2', 'n3'].map((id) => take(id, { labels: [id] }))
  await clock.advance(10)
  queue.push('s1', 's2')
  desk.ring()
  expect((await clock.run(Promise.all(all))).map(ids)).toEqual([['s1'], ['s2'], []])
})

test('work that comes while one is being looked after in vain is not missed', async () => {
  const { clock, queue, desk, take, ids, hold } = setUp()
  const open = hold()
  const waiting = take('n1')
  await clock.advance(10)
  desk.ring()
  open()
  queue.push('s1')
  expect(ids(await waiting)).toEqual(['s1'])
})

test('what is given out just as the node goes away is handed to the caller, who can give it back', async () => {
  const { clock, queue, take, ids, hold } = setUp()
  const open = hold()
  const gone = new AbortController()
  const waiting = take('n1', {}, 30_000, gone.signal)
  await clock.advance(10)
  queue.push('s1')
  gone.abort()
  open()
  expect(ids(await waiting)).toEqual(['s1'])
})

test('one whose signal is aborted ends at once and is served no more', async () => {
  const { clock, queue, desk, take, ids } = setUp()
  const gone = new AbortController()
  const waiting = take('n1', {}, 30_000, gone.signal)
  await clock.advance(10)
  gone.abort()
  expect(ids(await waiting)).toEqual([])
  queue.push('s1')
  desk.ring()
  await clock.advance(10)
  expect(queue).toEqual(['s1'])
})

test('a second call of a node ends the first', async () => {
  const { clock, take, ids, desk } = setUp()
  const first = take('n1')
  await clock.advance(10)
  const second = take('n1')
  expect(ids(await first)).toEqual([])
  await clock.advance(10)
  expect(desk.waiting).toBe(1)
  await clock.run(second)
})

test('a node that drains or is unknown is told so at once, and keeps nobody else from work', async () => {
  const { clock, queue, desk, take, ids, setStanding } = setUp()
  setStanding('draining')
  expect(await take('n1')).toEqual({ orders: [], node: 'draining' })
  setStanding('member')
  const waiting = take('n2')
  await clock.advance(10)
  queue.push('s1')
  desk.ring()
  expect(ids(await waiting)).toEqual(['s1'])
})

test('what the node holds is said once for each call', async () => {
  const { clock, desk, rooms, take } = setUp()
  const waiting = take('n1', { holding: [{ sessionId: 's0', attempt: 1 }] })
  await clock.advance(10)
  desk.ring()
  await clock.run(waiting)
  expect(rooms.map(({ holding }) => holding?.length)).toEqual([1, undefined])
})

test('a node with idle slots comes before one that would only take it in stock, and both get what they can use', async () => {
  const { clock, queue, desk, take, ids, rooms } = setUp()
  const stocking = take('full', { freeSlots: 4, ahead: 4 })
  const idle = take('idle', { freeSlots: 4, ahead: 3 })
  await clock.advance(10)
  rooms.length = 0
  queue.push('s1', 's2')
  desk.ring()
  expect(ids(await idle)).toEqual(['s1'])
  expect(ids(await stocking)).toEqual(['s2'])
  expect(rooms.map(({ freeSlots }) => freeSlots)).toEqual([1, 4])
})

test('a node that is silent for long is given nothing by a call it may not hear the end of; one that renews is', async () => {
  const { clock, queue, desk, take, ids } = setUp()
  const frozen = take('frozen', {}, 60_000)
  const alive = take('alive', {}, 60_000)
  await clock.advance(15_000)
  desk.hear('alive')
  await clock.advance(15_000)
  queue.push('s1', 's2')
  desk.ring()
  expect(ids(await frozen)).toEqual([])
  expect(ids(await alive)).toEqual(['s1'])
  expect(ids(await take('frozen', {}, 60_000))).toEqual(['s2'])
})
