import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { text } from 'node:stream/consumers'
import { expect, test } from 'vitest'
import { startEngine, type EngineOptions } from '../../../packages/tiny-engine/src/engine.ts'
import type { Policy } from '../../../packages/tiny-engine/src/policies/policy.ts'
import { collect, describeUpstream, request } from './upstream.contract.ts'
import { continuationOf } from './upstream.ts'
import { createVllm } from './vllm.ts'

const full = { idsOut: true, idsInStreams: 'complete', weightVersion: false, logprobs: 'raw' } as const

describeUpstream('vLLM 0.32 with its default flags: no /render', {
  create: createVllm,
  engine: { wire: 'vllm' },
  capabilities: { ...full, tokenIn: 'chat', render: 'tokenize', contextTokens: 32_768 },
  grade: 'exact',
})

describeUpstream('vLLM 0.32 with --enable-scale-out', {
  create: createVllm,
  engine: { wire: 'vllm', scaleOut: true },
  capabilities: { ...full, tokenIn: 'chat', render: 'render', contextTokens: 32_768 },
  grade: 'exact',
})

describeUpstream('vLLM 0.27', {
  create: createVllm,
  engine: { wire: 'vllm', wireVersion: '0.27.1' },
  capabilities: { ...full, tokenIn: 'chat', render: 'render', contextTokens: 32_768 },
  grade: 'exact',
})

describeUpstream('vLLM 0.15: ids only in completions', {
  create: createVllm,
  engine: { wire: 'vllm', wireVersion: '0.15.2' },
  capabilities: { ...full, tokenIn: 'completions', toolFormat: 'hermes', render: 'render' },
  grade: 'exact',
})

describeUpstream('vLLM 0.12: streams lose ids, no /render, reasoning is said twice', {
  create: createVllm,
  engine: { wire: 'vllm', wireVersion: '0.12' },
  capabilities: {
    ...full,
    idsInStreams: 'lossy',
    tokenIn: 'completions',
    toolFormat: 'hermes',
    render: 'tokenize',
  },
  grade: 'exact',
})

describeUpstream('vLLM 0.10.2: reasoning_content', {
  create: createVllm,
  engine: { wire: 'vllm', wireVersion: '0.10.2' },
  capabilities: { ...full, idsInStreams: 'lossy', tokenIn: 'completions', render: 'tokenize' },
  grade: 'exact',
})

test('probe() detects tool calls that no parser removes from the text', async () => {
  // The engine treats these as text, like a server without a parser or with the parser of another model.
  const script = `default: { text: '[{"name": "get_weather", "arguments": {}}]' }`
  await using engine = await startEngine({ script })
  await using upstream = createVllm({ baseUrl: engine.url, model: 'tiny' })
  const { findings } = await upstream.probe(AbortSignal.timeout(10_000))
  expect(findings.find(({ about }) => about === 'tools')).toMatchObject({
    verdict: 'limited',
    evidence: expect.stringContaining('get_weather'),
    meaning: expect.stringContaining('--tool-call-parser'),
  })
})

/** Samples tokens that depend on the seed and on the sampling parameters in force, as a model does. */
const seeded: Policy = {
  name: 'seeded',
  start: async ({ sampling: { seed = Math.random(), temperature, topP, topK, minP, repetitionPenalty } }) => ({
    async *sample(choice) {
      for (let at = 0; ; at++) {
        const mixed = Math.sin(
          seed + choice + 7 * at + 0.3 * temperature + topP / 3 + topK / 7 + minP + repetitionPenalty,
        )
        yield { id: 100 + Math.floor(1000 * Math.abs(mixed)), logprob: -1, rank: 0, top: [] }
      }
    },
  }),
  async [Symbol.asyncDispose]() {},
}

/** Returns what a probe finds out about the sampling defaults of a vLLM that does not render. */
async function probeSampling(options: EngineOptions) {
  await using engine = await startEngine({ ...options, wireVersion: '0.14' })
  await using upstream = createVllm({ baseUrl: engine.url, model: 'tiny' })
  const { findings, capabilities } = await upstream.probe(AbortSignal.timeout(30_000))
  const { sampling } = await collect(upstream, request('plain', { top_p: 0.5, max_tokens: 2 }))
  return { finding: findings.find(({ about }) => about === 'sampling'), capabilities, sampling }
}

test('without /render, probe() finds sampling defaults of the server by a comparison of answers with a fixed seed', async () => {
  const none = await probeSampling({ policy: seeded })
  expect(none.finding).toMatchObject({ verdict: 'good', evidence: 'temperature 1 and no filter by default' })
  expect(none.sampling).toMatchObject({ defaults: { temperature: 1, topP: 1, topK: 0, minP: 0 }, assumed: [] })

  const some = await probeSampling({ policy: seeded, generationConfig: { temperature: 0.6, top_k: 20, top_p: 0.9 } })
  expect(some.finding).toMatchObject({
    verdict: 'limited',
    evidence: expect.stringMatching(/another temperature.*another top_p.*another top_k/),
    meaning: expect.stringContaining('--generation-config vllm'),
  })
  expect(some.capabilities.hiddenDefaults).toEqual(['temperature', 'topP', 'topK'])
  expect(some.sampling).toMatchObject({ sent: { topP: 0.5 }, hidden: ['temperature', 'topP', 'topK'], assumed: [] })
  expect(some.sampling?.defaults).toEqual({ minP: 0 })
})

test('probe() reports sampling defaults that cannot be known as unknown', async () => {
  const { finding, capabilities } = await probeSampling({ script: 'default: { text: always the same }' })
  expect(finding).toMatchObject({
    verdict: 'limited',
    evidence: expect.stringContaining('unknown'),
    meaning: expect.stringContaining('--generation-config vllm'),
  })
  expect(capabilities).not.toHaveProperty('defaultSampling')
})

test('with /render, probe() reads the sampling defaults of the server', async () => {
  await using engine = await startEngine({
    policy: seeded,
    scaleOut: true,
    generationConfig: { top_k: 20, repetition_penalty: 1.05 },
  })
  await using upstream = createVllm({ baseUrl: engine.url, model: 'tiny' })
  const { findings } = await upstream.probe(AbortSignal.timeout(30_000))
  expect(findings.find(({ about }) => about === 'sampling')).toMatchObject({
    evidence: 'by default top_k 20, repetition_penalty 1.05',
  })
})

test('probe() does not conclude from a call that its limit cut', async () => {
  const args = JSON.stringify({ city: 'a city with a name of many words '.repeat(20) })
  const script = `default: { text: '[{"name": "get_weather", "arguments": ${args}}]' }`
  await using engine = await startEngine({ script })
  await using upstream = createVllm({ baseUrl: engine.url, model: 'tiny' })
  const { findings } = await upstream.probe(AbortSignal.timeout(10_000))
  expect(findings.find(({ about }) => about === 'tools')).toMatchObject({
    verdict: 'limited',
    evidence: expect.stringContaining('began a call'),
    meaning: expect.stringContaining('unknown'),
  })
})

test.each([0, 2])('probe() finds every capability of a server with --max-logprobs %i', async (maxLogprobs) => {
  await using engine = await startEngine({ script: 'default: { text: It is sunny. }', maxLogprobs })
  await using upstream = createVllm({ baseUrl: engine.url, model: 'tiny' })
  const { capabilities, findings } = await upstream.probe(AbortSignal.timeout(10_000))
  expect(capabilities).toMatchObject({ ...full, tokenIn: 'chat', render: 'tokenize' })
  expect(findings.filter(({ verdict }) => verdict === 'blocking')).toEqual([])
})

test('a proxy that relays neither /render nor /tokenize: continuation is off, and the report says why', async () => {
  await using engine = await startEngine({ script: 'default: { text: It is sunny. }' })
  await using proxy = await startProxy(engine.url, (path) => path.startsWith('/v1/') && !path.endsWith('/render'))
  await using upstream = createVllm({ baseUrl: proxy.url, model: 'tiny' })
  const { capabilities, findings } = await upstream.probe(AbortSignal.timeout(10_000))
  expect(capabilities).toMatchObject({ tokenIn: 'chat', render: 'none' })
  expect(continuationOf(capabilities)).toMatchObject({ via: 'off', why: expect.stringContaining('prompt ids') })
  expect(findings.find(({ about }) => about === 'continuation')).toMatchObject({
    verdict: 'limited',
    evidence: expect.stringContaining('off: no endpoint'),
    meaning: expect.stringContaining('/tokenize'),
  })
  expect(JSON.stringify(findings)).not.toContain('one training sample')
})

/** Forwards the paths that `relays` accepts, and answers others with 404. */
async function startProxy(
  target: string,
  relays: (path: string) => boolean,
): Promise<AsyncDisposable & { url: string }> {
  const server = createServer((incoming, outgoing) => {
    void (async () => {
      const path = incoming.url ?? ''
      const body = incoming.method === 'POST' ? await text(incoming) : undefined
      if (!relays(path)) return void outgoing.writeHead(404).end('{"error":{"message":"Not Found"}}')
      const headers = { 'content-type': 'application/json' }
      const response = await fetch(target + path, { method: incoming.method, headers, body })
      outgoing.writeHead(response.status, { 'content-type': response.headers.get('content-type') ?? '' })
      outgoing.end(await response.text())
    })()
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    async [Symbol.asyncDispose]() {
      server.closeAllConnections()
      await new Promise((resolve) => server.close(resolve))
    },
  }
}
