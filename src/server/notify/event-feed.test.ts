import fc from 'fast-check'
import pino from 'pino'
import { expect, test } from 'vitest'
import { FakeClock } from '../../../test/support/fake-clock.ts'
import type { EventPage, StoredEvent } from '../../store/dispatch/port.ts'
import { EventFeed, type FeedItem } from './event-feed.ts'

/** An event table in memory. The last `hidden` events wait for an older transaction. */
class Table {
  readonly events: StoredEvent[] = []
  hidden = 0
  reads = 0
  failures = 0
  isUnavailable = false
  #txid = 10

  write(taskId = 't', count = 1): void {
    const txid = ++this.#txid
    for (let id = 1; id <= count; id++) {
      const cursor = `${txid}-${id}`
      this.events.push({
        cursor,
        type: 'session.state_changed',
        data: { task_id: taskId, n: this.events.length },
        ts: 0,
      })
    }
  }

  read({ after = '0-0', limit, taskId }: { after?: string; limit: number; taskId?: string }): Promise<EventPage> {
    this.reads += 1
    if (this.failures > 0) {
      this.failures -= 1
      return Promise.reject(new Error('the database is unavailable'))
    }
    const shown = this.events.slice(0, this.events.length - this.hidden)
    const rest = shown
      .slice(firstAfter(shown, after))
      .filter(({ data }) => taskId === undefined || data['task_id'] === taskId)
    const events = rest.slice(0, limit)
    const isCut = events.length === limit
    const reached = this.newest()
    const next = isCut ? events.at(-1)!.cursor : isAfter(reached, after) ? reached : after
    return Promise.resolve({ events, next, isBehind: this.hidden > 0 })
  }

  newest(): string {
    return this.events.at(-1 - this.hidden)?.cursor ?? '10-0'
  }
}

/** The index of the first event behind `place`, by bisection. */
function firstAfter(events: readonly StoredEvent[], place: string): number {
  let low = 0
  let high = events.length
  while (low < high) {
    const middle = (low + high) >> 1
    if (isAfter(events[middle]!.cursor, place)) high = middle
    else low = middle + 1
  }
  return low
}

function isAfter(a: string, b: string): boolean {
  const [a1 = 0, a2 = 0] = a.split('-').map(Number)
  const [b1 = 0, b2 = 0] = b.split('-').map(Number)
  return a1 > b1 || (a1 === b1 && a2 > b2)
}

async function setUp() {
  const clock = new FakeClock()
  const table = new Table()
  const feed = await EventFeed.start({
    read: (query) => table.read(query),
    newestCursor: async () => {
      if (table.isUnavailable) throw new Error('the database is unavailable')
      return table.newest()
    },
    clock,
    logger: pino({ level: 'silent' }),
  })
  return { clock, table, feed }
}

const never = new AbortController().signal

/** Reads the next `count` items while the clock advances as needed. */
async function take(clock: FakeClock, items: AsyncIterator<FeedItem, void>, count: number): Promise<FeedItem[]> {
  const taken: FeedItem[] = []
  while (taken.length < count) {
    const { value, done } = await clock.run(items.next())
    if (done) break
    taken.push(value)
  }
  return taken
}

const numbers = (items: readonly FeedItem[]) =>
  items.flatMap((item) => (item.kind === 'event' ? [item.event.data['n'] as number] : []))

test('a subscriber gets hello and then only new events', async () => {
  const { clock, table, feed } = await setUp()
  table.write()
  await clock.advance(3000)
  const items = feed.subscribe({ signal: never })
  expect(await take(clock, items, 1)).toEqual([{ kind: 'hello', cursor: '11-1' }])
  table.write()
  feed.notify()
  expect(numbers(await take(clock, items, 1))).toEqual([1])
})

test('a subscriber gets a ping with its cursor after 15 s without events of its task', async () => {
  const { clock, table, feed } = await setUp()
  const items = feed.subscribe({ taskId: 'mine', signal: never })
  await take(clock, items, 1)
  const before = clock.now()
  expect(await take(clock, items, 1)).toEqual([{ kind: 'ping', cursor: '10-0' }])
  expect(clock.now() - before).toBe(15_000)
  table.write('other')
  expect(await take(clock, items, 1)).toEqual([{ kind: 'ping', cursor: '11-1' }])
})

test('without subscribers the table is not read, and later subscribers miss nothing', async () => {
  const { clock, table, feed } = await setUp()
  table.write('t', 1000)
  feed.notify()
  await clock.advance(60_000)
  expect(table.reads).toBe(0)
  const gone = new AbortController()
  const first = feed.subscribe({ signal: gone.signal })
  expect(await take(clock, first, 1)).toEqual([{ kind: 'hello', cursor: '11-1000' }])
  table.write()
  feed.notify()
  expect(numbers(await take(clock, first, 1))).toEqual([1000])
  gone.abort()
  expect(await take(clock, first, 1)).toEqual([])
  const { reads } = table
  table.write('t', 3)
  feed.notify()
  await clock.advance(60_000)
  expect(table.reads).toBe(reads)
  const back = feed.subscribe({ after: '12-1', signal: never })
  const fresh = feed.subscribe({ signal: never })
  expect(await take(clock, fresh, 1)).toEqual([{ kind: 'hello', cursor: '13-3' }])
  expect(numbers(await take(clock, back, 4))).toEqual([1001, 1002, 1003])
  table.write()
  feed.notify()
  expect(numbers(await take(clock, back, 1))).toEqual([1004])
  expect(numbers(await take(clock, fresh, 1))).toEqual([1004])
})

test('a first subscriber gets earlier events rather than a gap when the database is unavailable', async () => {
  const { clock, table, feed } = await setUp()
  table.write()
  table.isUnavailable = true
  table.failures = 1
  const items = feed.subscribe({ signal: never })
  expect(await take(clock, items, 1)).toEqual([{ kind: 'hello', cursor: '10-0' }])
  table.isUnavailable = false
  expect(numbers(await take(clock, items, 1))).toEqual([0])
})

test('an event is read soon after the older transaction has ended, without a notification', async () => {
  const { clock, table, feed } = await setUp()
  const items = feed.subscribe({ signal: never })
  await take(clock, items, 1)
  table.write()
  table.hidden = 1
  feed.notify()
  await clock.advance(10)
  const received = items.next()
  table.hidden = 0
  const before = clock.now()
  await clock.run(received)
  expect(clock.now() - before).toBeLessThanOrEqual(100)
})

test('the feed recovers from a failing database without reading continuously', async () => {
  const { clock, table, feed } = await setUp()
  const items = feed.subscribe({ signal: never })
  await take(clock, items, 1)
  table.failures = 5
  table.write()
  feed.notify()
  const { reads } = table
  expect(numbers(await take(clock, items, 1))).toEqual([0])
  expect(table.reads - reads).toBeLessThan(10)
})

test('a cursor of another database starts at the first event', async () => {
  const { clock, table, feed } = await setUp()
  table.write('t', 3)
  await clock.advance(3000)
  expect(numbers(await take(clock, feed.subscribe({ after: '999999-1', signal: never }), 4))).toEqual([0, 1, 2])
  expect(numbers(await take(clock, feed.subscribe({ after: 'nonsense', signal: never }), 4))).toEqual([0, 1, 2])
})

test('a subscriber that is far behind reads the table and misses no event at the switch to memory', async () => {
  const { clock, table, feed } = await setUp()
  const slow = feed.subscribe({ after: '10-0', signal: never })
  await take(clock, slow, 1)
  for (let i = 0; i < 12; i++) {
    table.write('t', 700)
    feed.notify()
    await clock.advance(1)
  }
  expect(numbers(await take(clock, slow, 8400))).toEqual(Array.from({ length: 8400 }, (_, i) => i))
})

test('a subscription ends when its signal is aborted and when the feed is disposed', async () => {
  const { clock, feed } = await setUp()
  const gone = new AbortController()
  const items = feed.subscribe({ signal: gone.signal })
  await take(clock, items, 1)
  const waiting = items.next()
  gone.abort()
  expect(await waiting).toMatchObject({ done: true })
  const others = feed.subscribe({ signal: never })
  await take(clock, others, 1)
  const waitingToo = others.next()
  await feed[Symbol.asyncDispose]()
  expect(await waitingToo).toMatchObject({ done: true })
  expect(clock.pending).toBe(0)
})

test('a subscriber that reconnects with its last cursor gets every event exactly once', async () => {
  const anyStep = fc.oneof(
    fc.record({ kind: fc.constant('write'), task: fc.constantFrom('a', 'b'), count: fc.integer({ min: 1, max: 900 }) }),
    fc.record({ kind: fc.constant('hide'), count: fc.integer({ min: 0, max: 5 }) }),
    fc.record({ kind: fc.constant('read'), count: fc.integer({ min: 0, max: 1500 }) }),
    fc.constant({ kind: 'cut' }),
    fc.constant({ kind: 'notify' }),
    fc.constant({ kind: 'wait' }),
  )
  await fc.assert(
    fc.asyncProperty(fc.array(anyStep, { maxLength: 40 }), fc.constantFrom(undefined, 'a'), async (steps, taskId) => {
      const { clock, table, feed } = await setUp()
      let cursor: string | undefined
      const received: number[] = []
      const open = () => feed.subscribe({ after: cursor, taskId, signal: never })
      let items = open()
      const read = async (most: number, isLast: boolean): Promise<void> => {
        for (let i = 0; i < most; i++) {
          const { value } = await clock.run(items.next())
          if (value === undefined) return
          cursor = value.kind === 'event' ? value.event.cursor : value.cursor
          if (value.kind === 'event') received.push(value.event.data['n'] as number)
          // No more events for now.
          else if (value.kind === 'ping' && isLast === (table.hidden === 0)) return
        }
      }
      await read(1, false)
      for (const step of steps as { kind: string; task: string; count: number }[]) {
        if (step.kind === 'write') table.write(step.task, step.count)
        else if (step.kind === 'hide') table.hidden = Math.min(step.count, table.events.length)
        else if (step.kind === 'read') await read(Math.min(step.count, table.events.length), false)
        else if (step.kind === 'notify') feed.notify()
        else if (step.kind === 'wait') await clock.advance(500)
        else {
          await items.return(undefined)
          items = open()
        }
      }
      table.hidden = 0
      await read(Infinity, true)
      const expected = table.events.filter(({ data }) => taskId === undefined || data['task_id'] === taskId)
      expect(received).toEqual(expected.map(({ data }) => data['n']))
      await feed[Symbol.asyncDispose]()
    }),
    { numRuns: 60 },
  )
})
