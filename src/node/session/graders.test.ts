import { expect, test } from 'vitest'
import { FakeClock } from '../../../test/support/fake-clock.ts'
import { Slots } from '../../lib/async/slots.ts'
import { Graders } from './graders.ts'
import type { Sandbox } from '../sandbox/runtimes/runtime.ts'

const NEVER = new AbortController().signal

/** Graders whose sandboxes need some time to start, with a list of the running sandboxes. */
class GradersFixture {
  readonly clock = new FakeClock()
  readonly standby = new Slots(1)
  readonly running = new Set<string>()
  started = 0
  /** Number of starts that fail. */
  failures = 0
  isDeaf = false
  readonly graders: Graders

  constructor({ fromAgent = false }: { fromAgent?: boolean } = {}) {
    this.graders = new Graders({
      startClean: (signal) => this.#startSandbox('clean', signal),
      startUntouched: (signal) => this.#startSandbox('untouched', signal),
      startFromAgent: fromAgent ? (signal) => this.#startSandbox('agent', signal) : undefined,
      standby: this.standby,
      now: () => this.clock.now(),
    })
  }

  async #startSandbox(from: string, signal: AbortSignal): Promise<Sandbox> {
    const id = `${from}-${++this.started}`
    await this.clock.sleep(100, this.isDeaf ? undefined : signal)
    if (this.started <= this.failures) throw new Error('no capacity')
    this.running.add(id)
    return { id, stop: async () => void this.running.delete(id) } as unknown as Sandbox
  }

  async acquire(from: 'clean' | 'agent' = 'clean', signal = NEVER): Promise<string> {
    return (await this.clock.run(this.graders.acquire(from, signal))).id
  }

  async dispose(): Promise<void> {
    await this.clock.run(this.graders[Symbol.asyncDispose]())
  }
}

test('acquire() starts a grader if none was started early', async () => {
  const fixture = new GradersFixture()
  expect(await fixture.acquire()).toBe('clean-1')
  expect(fixture.graders.prewarmTimes).toBeUndefined()
  await fixture.dispose()
  expect(fixture.running.size).toBe(0)
})

test('acquire() returns the early grader once, and prewarmTimes has its idle and saved time', async () => {
  const fixture = new GradersFixture()
  fixture.graders.prewarm()
  await fixture.clock.advance(250)
  expect(await fixture.acquire()).toBe('clean-1')
  expect(fixture.graders.prewarmTimes).toEqual({ idleMs: 150, savedMs: 100 })
  expect(await fixture.acquire()).toBe('clean-2')
  await fixture.dispose()
  expect(fixture.running.size).toBe(0)
})

test('acquire() waits for an early grader that is still starting', async () => {
  const fixture = new GradersFixture()
  fixture.graders.prewarm()
  await fixture.clock.advance(40)
  expect(await fixture.acquire()).toBe('clean-1')
  expect(fixture.graders.prewarmTimes).toEqual({ idleMs: 0, savedMs: 40 })
  await fixture.dispose()
})

test('acquire() starts another grader if the early grader failed, whose slot is free again', async () => {
  const fixture = new GradersFixture()
  fixture.failures = 1
  fixture.graders.prewarm()
  await fixture.clock.advance(200)
  expect(fixture.standby.inUse).toBe(0)
  expect(await fixture.acquire()).toBe('clean-2')
  await fixture.dispose()
  expect([fixture.running.size, fixture.standby.inUse]).toEqual([0, 0])
})

test('prewarm() starts at most as many graders as standby has slots', async () => {
  const fixture = new GradersFixture()
  using _ = fixture.standby.tryAcquire()!
  fixture.graders.prewarm()
  await fixture.clock.advance(200)
  expect(fixture.started).toBe(0)
  expect(await fixture.acquire()).toBe('clean-1')
  await fixture.dispose()
})

test('acquire() releases the standby slot, and a session holds at most one', async () => {
  const fixture = new GradersFixture()
  fixture.graders.prewarm()
  fixture.graders.prewarm()
  expect([fixture.started, fixture.standby.inUse]).toEqual([1, 1])
  await fixture.acquire()
  expect(fixture.standby.inUse).toBe(0)
  await fixture.dispose()
})

test('disposal stops an unused early grader and releases its slot', async () => {
  const fixture = new GradersFixture()
  fixture.graders.prewarm()
  await fixture.clock.advance(200)
  await fixture.dispose()
  expect([fixture.running.size, fixture.standby.inUse]).toEqual([0, 0])
})

test.each([false, true])('disposal stops a grader that is still starting (ignores its signal: %s)', async (isDeaf) => {
  const fixture = new GradersFixture()
  fixture.isDeaf = isDeaf
  fixture.graders.prewarm()
  await fixture.clock.advance(10)
  await fixture.dispose()
  await fixture.clock.advance(1000)
  expect([fixture.running.size, fixture.standby.inUse]).toEqual([0, 0])
})

test('prewarm() does nothing after disposal', async () => {
  const fixture = new GradersFixture()
  await fixture.dispose()
  fixture.graders.prewarm()
  expect([fixture.started, fixture.standby.inUse]).toEqual([0, 0])
})

test('acquire() rejects after an abort, and the grader that was starting is stopped', async () => {
  const fixture = new GradersFixture()
  fixture.isDeaf = true
  const enough = new AbortController()
  const taken = fixture.graders.acquire('clean', enough.signal)
  taken.catch(() => {})
  await fixture.clock.advance(10)
  enough.abort(new Error('took too long'))
  await fixture.dispose()
  await Promise.allSettled([taken])
  expect(fixture.running.size).toBe(0)
  await expect(fixture.graders.acquire('clean', enough.signal)).rejects.toThrow('took too long')
})

test('acquire() of the agent state requires needs.agentState, and never returns the early grader', async () => {
  const fixture = new GradersFixture()
  await expect(fixture.graders.acquire('agent', NEVER)).rejects.toMatchObject({ code: 'evaluator.crashed' })
  const other = new GradersFixture({ fromAgent: true })
  other.graders.prewarm()
  expect(await other.acquire('agent')).toBe('agent-2')
  await other.dispose()
  expect(other.running.size).toBe(0)
})
