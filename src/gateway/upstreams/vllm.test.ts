import { expect, test } from 'vitest'
import { startEngine } from '../../../packages/tiny-engine/src/engine.ts'
import { describeUpstream } from './upstream.contract.ts'
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
