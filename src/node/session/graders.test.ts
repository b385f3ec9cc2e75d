import { expect, test } from 'vitest'
import { FakeClock } from '../../../test/support/fake-clock.ts'
import { Slots } from '../../lib/async/slots.ts'
import { Graders } from './graders.ts'
import type { Sandbox } from '../sandbox/runtimes/runtime.ts'

const NEVER = new AbortController().signal

/** A place where sandboxes take a while to make, and where it is known which of them are still there. */
class Workshop {
  readonly clock = new FakeClock()
  readonly standby = new Slots(1)
  readonly there = new Set<string>()
  made = 0
  /** The first so many fail. */
  failures = 0
  isDeaf = false
  readonly graders: Graders

  constructor({ fromAgent = false }: { fromAgent?: boolean } = {}) {
    this.graders = new Graders({
      startClean: (signal) => this.#make('clean', signal),
      startUntouched: (signal) => this.#make('untouched', signal),
      startFromAgent: fromAgent ? (signal) => this.#make('agent', signal) : undefined,
      standby: this.standby,
      now: () => this.clock.now(),
    })
  }

  async #make(from: string, signal: AbortSignal): Promise<Sandbox> {
    const id = `${from}-${++this.made}`
    await this.clock.sleep(100, this.isDeaf ? undefined : signal)
    if (this.made <= this.failures) throw new Error('no room')
    this.there.add(id)
    return { id, stop: async () => void this.there.delete(id) } as unknown as Sandbox
  }

  async take(from: 'clean' | 'agent' = 'clean', signal = NEVER): Promise<string> {
    return (await this.clock.run(this.graders.acquire(from, signal))).id
  }

  async dispose(): Promise<void> {
    await this.clock.run(this.graders[Symbol.asyncDispose]())
  }
}

test('without a prewarm one is made when it is asked for', async () => {
  const shop = new Workshop()
  expect(await shop.take()).toBe('clean-1')
  expect(shop.graders.prewarmTimes).toBeUndefined()
  await shop.dispose()
  expect(shop.there.size).toBe(0)
})

test('one that was made early is taken once, and it is known how long it stood idle and what it saved', async () => {
  const shop = new Workshop()
  shop.graders.prewarm()
  await shop.clock.advance(250)
  expect(await shop.take()).toBe('clean-1')
  expect(shop.graders.prewarmTimes).toEqual({ idleMs: 150, savedMs: 100 })
  expect(await shop.take()).toBe('clean-2')
  await shop.dispose()
  expect(shop.there.size).toBe(0)
})

test('one that is still being made is waited for, and saved as much as it had been begun before', async () => {
  const shop = new Workshop()
  shop.graders.prewarm()
  await shop.clock.advance(40)
  expect(await shop.take()).toBe('clean-1')
  expect(shop.graders.prewarmTimes).toEqual({ idleMs: 0, savedMs: 40 })
  await shop.dispose()
})

test('the failure of an early one costs nothing: another is made, and its place is free again', async () => {
  const shop = new Workshop()
  shop.failures = 1
  shop.graders.prewarm()
  await shop.clock.advance(200)
  expect(shop.standby.inUse).toBe(0)
  expect(await shop.take()).toBe('clean-2')
  await shop.dispose()
  expect([shop.there.size, shop.standby.inUse]).toEqual([0, 0])
})

test('only so many stand by at a time; the others are made when they are wanted', async () => {
  const shop = new Workshop()
  using _ = shop.standby.tryAcquire()!
  shop.graders.prewarm()
  await shop.clock.advance(200)
  expect(shop.made).toBe(0)
  expect(await shop.take()).toBe('clean-1')
  await shop.dispose()
})

test('a place to stand by is given back when the early one is taken, and one session holds one at most', async () => {
  const shop = new Workshop()
  shop.graders.prewarm()
  shop.graders.prewarm()
  expect([shop.made, shop.standby.inUse]).toEqual([1, 1])
  await shop.take()
  expect(shop.standby.inUse).toBe(0)
  await shop.dispose()
})

test('one that nobody wanted is removed with the session, and its place is free', async () => {
  const shop = new Workshop()
  shop.graders.prewarm()
  await shop.clock.advance(200)
  await shop.dispose()
  expect([shop.there.size, shop.standby.inUse]).toEqual([0, 0])
})

test.each([false, true])(
  'one that is being made when the session ends is not left behind (deaf: %s)',
  async (isDeaf) => {
    const shop = new Workshop()
    shop.isDeaf = isDeaf
    shop.graders.prewarm()
    await shop.clock.advance(10)
    await shop.dispose()
    await shop.clock.advance(1000)
    expect([shop.there.size, shop.standby.inUse]).toEqual([0, 0])
  },
)

test('none is made early once the session is over', async () => {
  const shop = new Workshop()
  await shop.dispose()
  shop.graders.prewarm()
  expect([shop.made, shop.standby.inUse]).toEqual([0, 0])
})

test('whoever gives up while one is made gets none, and it is not left behind', async () => {
  const shop = new Workshop()
  shop.isDeaf = true
  const enough = new AbortController()
  const taken = shop.graders.acquire('clean', enough.signal)
  taken.catch(() => {})
  await shop.clock.advance(10)
  enough.abort(new Error('took too long'))
  await shop.dispose()
  await Promise.allSettled([taken])
  expect(shop.there.size).toBe(0)
  await expect(shop.graders.acquire('clean', enough.signal)).rejects.toThrow('took too long')
})

test('what the agent left is given only to an evaluator that said it needs it, and never the one made early', async () => {
  const shop = new Workshop()
  await expect(shop.graders.acquire('agent', NEVER)).rejects.toMatchObject({ code: 'evaluator.crashed' })
  const other = new Workshop({ fromAgent: true })
  other.graders.prewarm()
  expect(await other.take('agent')).toBe('agent-2')
  await other.dispose()
  expect(other.there.size).toBe(0)
})
