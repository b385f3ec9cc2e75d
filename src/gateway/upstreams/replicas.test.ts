import { describe, expect, test } from 'vitest'
import { RolloutError, type FailureCode } from '../../model/failure.ts'
import type { StreamEvent } from '../../model/stream-event.ts'
import { createReplicas, type ReplicasOptions } from './replicas.ts'
import { collect, request } from './upstream.contract.ts'
import type { Capabilities, Upstream } from './upstream.ts'

const capabilities: Capabilities = {
  idsOut: true,
  idsInStreams: 'complete',
  tokenIn: 'chat',
  render: 'render',
  weightVersion: false,
  logprobs: 'raw',
  contextTokens: 1000,
}

/** An engine that follows a plan. */
class Fake implements Upstream {
  readonly kind = 'vllm'
  readonly url: string
  capabilities = capabilities
  /** The results of its next calls. After the last entry it answers. */
  readonly plan: (FailureCode | { afterHeaders: FailureCode; events?: StreamEvent[] })[] = []
  calls = 0
  checks = 0
  isDisposed = false

  constructor(name: string) {
    this.url = `http://${name}`
  }

  async send() {
    this.calls += 1
    const step = this.plan.shift()
    if (typeof step === 'string') throw new RolloutError(step, step)
    return { forced: { from: this.url }, dropped: [], events: this.#events(step) }
  }

  async *#events(step: Exclude<Fake['plan'][number], string> | undefined): AsyncGenerator<StreamEvent[]> {
    const start: StreamEvent = { type: 'answer-start', id: this.url, model: 'm', created: 0 }
    if (step !== undefined) {
      if (step.events !== undefined) yield step.events
      const { failure } = new RolloutError(step.afterHeaders, 'broke')
      yield [{ type: 'answer-error', failure }]
      return
    }
    yield [start, { type: 'choice-delta', choice: 0, text: 'hello', finishReason: 'stop' }, { type: 'answer-end' }]
  }

  async listModels(): Promise<string[]> {
    this.checks += 1
    const step = this.plan.shift()
    if (typeof step === 'string') throw new RolloutError(step, step)
    return ['m']
  }

  tokenise = () => Promise.resolve(new Int32Array(3))
  countTokens = () => Promise.resolve(3)
  contextTokens = () => Promise.resolve(1000)
  probe = () =>
    Promise.resolve({
      kind: 'vllm',
      url: this.url,
      model: 'm',
      capabilities: this.capabilities,
      findings: [{ about: 'context' as const, verdict: 'good' as const, evidence: 'same', meaning: 'same' }],
    })

  async [Symbol.asyncDispose](): Promise<void> {
    this.isDisposed = true
  }
}

function setUp(options: Partial<ReplicasOptions> = {}) {
  const fakes = [new Fake('a'), new Fake('b'), new Fake('c')] as const
  const clock = { ms: 0 }
  const upstream = createReplicas({ replicas: fakes, now: () => clock.ms, checkEveryMs: 0, ...options })
  const call = async (sessionKey?: string) => {
    const { response, failure, forced, text } = await collect(upstream, request('plain', {}), { sessionKey })
    return { by: response?.id, replica: forced['replica'], failure: failure?.code, text }
  }
  return { fakes, clock, upstream, call }
}

describe('createReplicas()', () => {
  test('a session stays with its replica, and new sessions are distributed', async () => {
    const { call, upstream } = setUp()
    await using _upstream = upstream
    const first = await Promise.all(['s1', 's2', 's3'].map((key) => call(key)))
    expect(new Set(first.map(({ by }) => by)).size).toBe(3)
    for (let round = 0; round < 3; round++) {
      for (const [i, key] of ['s1', 's2', 's3'].entries()) expect((await call(key)).by).toBe(first[i]?.by)
    }
    expect(first.every(({ by, replica }) => by === replica)).toBe(true)
  })

  test.each([
    'upstream.unreachable',
    'upstream.reset',
    'upstream.failed',
    'upstream.overloaded',
    'upstream.rate-limited',
  ] as const)('%s before the answer is retried on another replica, and the session moves there', async (code) => {
    const { call, fakes, upstream } = setUp()
    await using _upstream = upstream
    expect((await call('s')).by).toBe('http://a')
    fakes[0].plan.push(code)
    const moved = await call('s')
    expect([moved.failure, moved.text]).toEqual([undefined, 'hello'])
    expect(moved.by).not.toBe('http://a')
    expect((await call('s')).by).toBe(moved.by)
  })

  test.each(['upstream.refused', 'request.context-overflow', 'request.malformed'] as const)(
    '%s is not retried, because it fails on every replica',
    async (code) => {
      const { call, fakes, upstream } = setUp()
      await using _upstream = upstream
      fakes[0].plan.push(code)
      expect((await call('s')).failure).toBe(code)
      expect(fakes.map(({ calls }) => calls)).toEqual([1, 0, 0])
    },
  )

  test('an answer that breaks before its first event is retried on another replica; later it is not', async () => {
    const { call, fakes, upstream } = setUp()
    await using _upstream = upstream
    fakes[0].plan.push({ afterHeaders: 'upstream.reset' })
    expect(await call('s')).toMatchObject({ failure: undefined, by: 'http://b', replica: 'http://b' })
    const start: StreamEvent = { type: 'answer-start', id: 'half', model: 'm', created: 0 }
    fakes[1].plan.push({ afterHeaders: 'upstream.reset', events: [start] })
    expect(await call('s')).toMatchObject({ failure: 'upstream.reset', by: 'half', replica: 'http://b' })
    expect(fakes.map(({ calls }) => calls)).toEqual([1, 2, 0])
  })

  test('when all replicas fail, the last failure is returned', async () => {
    const { call, fakes, upstream } = setUp()
    await using _upstream = upstream
    for (const fake of fakes) fake.plan.push('upstream.reset')
    expect((await call('s')).failure).toBe('upstream.reset')
    expect(fakes.map(({ calls }) => calls)).toEqual([1, 1, 1])
    for (const fake of fakes) fake.plan.push({ afterHeaders: 'upstream.bad-stream' })
    expect((await call('s')).failure).toBe('upstream.bad-stream')
  })

  test('after consecutive failures a replica receives no calls until one test call succeeds', async () => {
    const { call, fakes, clock, upstream } = setUp({ failuresToOpen: 2, cooldownMs: 1000 })
    await using _upstream = upstream
    const [a] = fakes
    await call('s')
    for (let i = 0; i < 2; i++) {
      a.plan.push('upstream.reset')
      // Three sessions, so that one of them uses this replica.
      await call(`t${i}`)
      await call(`u${i}`)
      await call(`v${i}`)
    }
    const callsWhenOpen = a.calls
    for (let i = 0; i < 5; i++) expect((await call(`w${i}`)).by).not.toBe('http://a')
    expect(a.calls).toBe(callsWhenOpen)
    clock.ms = 1001
    a.plan.push('upstream.reset')
    for (let i = 0; i < 4; i++) expect((await call(`x${i}`)).failure).toBeUndefined()
    expect(a.calls).toBe(callsWhenOpen + 1)
    clock.ms = 2100
    for (let i = 0; i < 6; i++) await call(`y${i}`)
    expect(a.calls).toBeGreaterThan(callsWhenOpen + 2)
  })

  test('an overloaded replica stays healthy', async () => {
    const { call, fakes, upstream } = setUp({ failuresToOpen: 1 })
    await using _upstream = upstream
    fakes[0].plan.push('upstream.rate-limited')
    await call('s')
    const served = await Promise.all(Array.from({ length: 3 }, (_, i) => call(`n${i}`)))
    expect(served.map(({ by }) => by)).toContain('http://a')
  })

  test('a health check alone makes a replica usable again', async () => {
    const { call, fakes, upstream } = setUp({ failuresToOpen: 1, cooldownMs: 0, checkEveryMs: 5 })
    await using _upstream = upstream
    fakes[0].plan.push('upstream.unreachable', 'upstream.unreachable')
    await call('s')
    await expect.poll(() => fakes[0].checks).toBeGreaterThan(2)
    const served = await Promise.all(Array.from({ length: 3 }, (_, i) => call(`n${i}`)))
    expect(served.map(({ by }) => by)).toContain('http://a')
  })

  test('an aborted call is not retried', async () => {
    const { fakes, upstream } = setUp()
    await using _upstream = upstream
    const abort = new AbortController()
    fakes[0].plan.push('upstream.reset')
    abort.abort()
    await collect(upstream, request('plain', {}), { signal: abort.signal })
    expect(fakes.map(({ calls }) => calls)).toEqual([1, 0, 0])
  })

  test('has the capabilities of all replicas, and merges equal findings', async () => {
    const { fakes, upstream } = setUp()
    fakes[1].capabilities = { ...capabilities, idsInStreams: 'lossy', tokenIn: 'completions', contextTokens: 500 }
    fakes[2].capabilities = { ...capabilities, render: 'tokenize', logprobs: 'tempered' }
    expect(upstream.capabilities).toEqual({
      ...capabilities,
      idsInStreams: 'lossy',
      tokenIn: 'completions',
      render: 'tokenize',
      contextTokens: 500,
      logprobs: 'unknown',
    })
    const report = await upstream.probe(AbortSignal.timeout(1000))
    expect(report.findings).toMatchObject([{ evidence: 'all 3: same' }])
    expect(report.url).toBe('http://a,http://b,http://c')
    await upstream[Symbol.asyncDispose]()
    expect(fakes.every(({ isDisposed }) => isDisposed)).toBe(true)
  })
})
