import { expect, test } from 'vitest'
import { startEngine, type EngineOptions } from '../../../packages/tiny-engine/src/engine.ts'
import type { Policy } from '../../../packages/tiny-engine/src/policies/policy.ts'
import { collect, describeUpstream, request } from './upstream.contract.ts'
import { createVllm } from './vllm.ts'

const full = { idsOut: true, idsInStreams: 'complete', tokenise: true, weightVersion: false, logprobs: 'raw' } as const

describeUpstream('vLLM 0.27', {
  create: createVllm,
  engine: { wire: 'vllm' },
  capabilities: { ...full, tokenInChat: true, render: true, contextTokens: 32_768 },
  grade: 'exact',
})

describeUpstream('vLLM 0.15: no ids in chat', {
  create: createVllm,
  engine: { wire: 'vllm', wireVersion: '0.15.2' },
  capabilities: { ...full, tokenInChat: false, render: true },
  grade: 'exact',
})

describeUpstream('vLLM 0.12: streams lose ids, nothing renders, reasoning is said twice', {
  create: createVllm,
  engine: { wire: 'vllm', wireVersion: '0.12' },
  capabilities: { ...full, idsInStreams: 'lossy', tokenInChat: false, render: false },
  grade: 'exact',
})

describeUpstream('vLLM 0.10.2: reasoning_content', {
  create: createVllm,
  engine: { wire: 'vllm', wireVersion: '0.10.2' },
  capabilities: { ...full, idsInStreams: 'lossy', tokenInChat: false, render: false },
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
  await using engine = await startEngine({ policy: seeded, generationConfig: { top_k: 20, repetition_penalty: 1.05 } })
  await using upstream = createVllm({ baseUrl: engine.url, model: 'tiny' })
  const { findings } = await upstream.probe(AbortSignal.timeout(30_000))
  expect(findings.find(({ about }) => about === 'sampling')).toMatchObject({
    evidence: 'by default top_k 20, repetition_penalty 1.05',
  })
})
