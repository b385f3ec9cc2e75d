import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { text } from 'node:stream/consumers'
import { expect, test } from 'vitest'
import { startEngine } from '../../../packages/tiny-engine/src/engine.ts'
import { describeUpstream } from './upstream.contract.ts'
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
