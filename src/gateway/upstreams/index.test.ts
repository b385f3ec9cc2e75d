import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { describe, expect, test } from 'vitest'
import { startEngine } from '../../../packages/tiny-engine/src/engine.ts'
import { createUpstream, detectKind, upstreams, type UpstreamKind } from './index.ts'

const deps = { now: () => performance.now() }

describe('detectKind()', () => {
  test.each(['vllm', 'sglang', 'llamacpp', 'openai'] as const)('recognises %s', async (wire) => {
    await using engine = await startEngine({ wire, script: 'default: { text: x }' })
    const { kind, evidence } = await detectKind({ baseUrl: engine.url }, AbortSignal.timeout(5000))
    expect(kind).toBe(wire)
    expect(evidence).not.toBe('')
  })

  test.each([
    ['llamacpp', '/props', { build_info: 'b1' }],
    ['sglang', '/get_server_info', { version: '0.5.13' }],
    ['vllm', '/version', { version: '0.20' }],
    ['openai', '/nothing', {}],
  ] as const)('recognises %s behind a proxy that lists models itself, by %s', async (kind, path, body) => {
    const answers: Record<string, unknown> = { '/v1/models': { data: [{ id: 'm', owned_by: 'us' }] }, [path]: body }
    const server = createServer((request, response) => {
      const answer = answers[request.url ?? '']
      response.writeHead(answer === undefined ? 404 : 200).end(JSON.stringify(answer ?? {}))
    })
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    const baseUrl = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
    expect((await detectKind({ baseUrl }, AbortSignal.timeout(5000))).kind).toBe(kind satisfies UpstreamKind)
    server.close()
  })

  test('rejects when nothing answers', async () => {
    const detecting = detectKind({ baseUrl: 'http://127.0.0.1:9' }, AbortSignal.timeout(5000))
    await expect(detecting).rejects.toMatchObject({ code: 'upstream.unreachable' })
  })
})

describe('createUpstream()', () => {
  test('creates the upstream of one engine or of several replicas', async () => {
    const url = 'http://127.0.0.1:9'
    await using one = createUpstream({ kind: 'sglang', url }, deps)
    expect([one.kind, one.url]).toEqual(['sglang', url])
    await using two = createUpstream(
      [
        { kind: 'vllm', url },
        { kind: 'vllm', url: 'http://127.0.0.1:10/v1/' },
      ],
      deps,
    )
    expect([two.kind, two.url]).toEqual(['vllm', `${url},http://127.0.0.1:10`])
  })

  test('uses the capabilities of an earlier probe', async () => {
    const config = upstreams.config.parse({
      kind: 'vllm',
      url: 'http://127.0.0.1:9',
      capabilities: { idsInStreams: 'lossy' },
    })
    await using upstream = createUpstream(config, deps)
    expect(upstream.capabilities).toMatchObject({ idsInStreams: 'lossy', idsOut: true })
  })

  test.each([
    [{ kind: 'vlm', url: 'http://x' }, 'must be one of vllm, sglang, llamacpp, openai'],
    [{ kind: 'vllm', url: 'ftp://x' }, 'Invalid URL'],
    [{ kind: 'vllm', url: 'http://x', modle: 'm' }, 'modle'],
  ])('rejects an invalid config: %j', (config, words) => {
    expect(() => upstreams.config.parse(config)).toThrow(words)
  })
})
