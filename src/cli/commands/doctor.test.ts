import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { describe, expect, test } from 'vitest'
import { startEngine, type EngineOptions } from '../../../packages/tiny-engine/src/engine.ts'

const MAIN = new URL('../main.ts', import.meta.url).pathname

async function doctor(...words: string[]): Promise<{ code: number | null; stdout: string; stderr: string }> {
  const child = spawn(process.execPath, [MAIN, 'doctor', ...words], {
    cwd: tmpdir(),
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  let stdout = ''
  let stderr = ''
  child.stdout.on('data', (text) => (stdout += String(text)))
  child.stderr.on('data', (text) => (stderr += String(text)))
  const [code] = (await once(child, 'close')) as [number | null]
  return { code, stdout, stderr }
}

const serve = (options: Pick<EngineOptions, 'wire' | 'wireVersion' | 'apiKey'>) =>
  startEngine({ ...options, script: 'default: { text: "It is sunny in Paris today." }' })

describe('polar doctor', () => {
  test('reports versions, memory, disk and runtimes of this machine', async () => {
    const { code, stdout } = await doctor()
    expect(code).toBe(0)
    expect(stdout).toMatch(/✓ polar +\d+\.\d+/)
    expect(stdout).toContain(`✓ node            ${process.versions.node}`)
    expect(stdout).toMatch(/disk +[\d.]+ [GM]iB free for \//)
    expect(stdout).toMatch(/✓ local +sandboxes can be started\n +nothing is isolated/)
    expect(stdout).toMatch(/[✓!] bubblewrap +(sandboxes can be started|no sandboxes of this kind)/)
    expect(stdout).toMatch(/model +(native onnxruntime|onnxruntime in WebAssembly)/)
  })

  test.each([
    ['vllm', 'complete', true],
    ['sglang', 'none', true],
    ['llamacpp', 'lossy', true],
    ['openai', 'none', false],
  ] as const)('detects %s and reports what can be captured from it', async (wire, idsInStreams, isExact) => {
    await using engine = await serve({ wire })
    const { code, stdout } = await doctor('--engine-url', engine.url, '--json')
    expect(code).toBe(isExact ? 0 : 1)
    expect(JSON.parse(stdout)).toMatchObject({
      exact: isExact,
      failure: null,
      machine: { node: { ok: true } },
      upstream: { kind: wire, model: 'tiny', capabilities: { idsInStreams, ids_in_streams: idsInStreams } },
    })
  })

  test('prints each finding with its consequence', async () => {
    await using engine = await serve({ wire: 'vllm', wireVersion: '0.12' })
    const { code, stdout } = await doctor('--engine-url', engine.url)
    expect(code).toBe(0)
    expect(stdout).toContain(`vllm 0.12 at ${engine.url}, model tiny`)
    expect(stdout).toMatch(/! ids-in-streams +0\.12: parsers .* drop ids in streams\n +A call with `stream`/)
    expect(stdout).toContain('Calls to this engine can be captured exactly.')
    expect(stdout).not.toMatch(/ $/m)
  })

  test('checks several replicas, and an engine as the kind of --engine-kind', async () => {
    await using one = await serve({ wire: 'vllm' })
    await using two = await serve({ wire: 'vllm', wireVersion: '0.20' })
    const both = await doctor('--engine-url', `${one.url},${two.url}`, '--json')
    expect(both.code).toBe(0)
    expect(JSON.parse(both.stdout)).toMatchObject({
      upstream: { url: `${one.url},${two.url}`, capabilities: { tokenIn: 'completions', idsInStreams: 'complete' } },
    })
    const asText = await doctor('--engine-url', one.url, '--engine-kind', 'openai')
    expect(asText.code).toBe(1)
    expect(asText.stdout).toContain('✗ ids-out')
  })

  test('reports an engine that rejects tools, or the key; former flags still work', async () => {
    await using engine = await serve({ wire: 'vllm', apiKey: 'secret' })
    expect((await doctor('--engine-url', engine.url)).code).toBe(3)
    const former = await doctor('--upstream', engine.url, '--upstream-key=secret')
    expect(former).toMatchObject({
      code: 0,
      stderr:
        '--upstream is now --engine-url; the old spelling works until the next release.\n' +
        '--upstream-key is now --engine-key; the old spelling works until the next release.\n',
    })
    const server = refusingTools(engine.url)
    await once(server.listen(0, '127.0.0.1'), 'listening')
    const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
    const { code, stdout } = await doctor('--engine-url', url, '--engine-key', 'secret')
    server.close()
    expect(code).toBe(1)
    expect(stdout).toMatch(/✗ tools +rejected: "auto" tool choice requires/)
    expect(stdout).toContain('--enable-auto-tool-choice')
  })

  test('exits with 3 if no engine answers, with 2 if the URL is invalid', async () => {
    const absent = await doctor('--engine-url', 'http://127.0.0.1:9')
    expect(absent.code).toBe(3)
    expect(absent.stdout).toContain('No engine answers at http://127.0.0.1:9')
    expect((await doctor('--engine-url', 'gpu-box')).code).toBe(2)
  })
})

/** A server that was started without a tool parser. */
function refusingTools(engineUrl: string): Server {
  return createServer((request, response) => {
    void (async () => {
      const chunks: Uint8Array[] = []
      for await (const chunk of request as AsyncIterable<Uint8Array>) chunks.push(chunk)
      const body = Buffer.concat(chunks)
      if (body.includes('"tools":[')) {
        const message = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
        response.writeHead(400).end(JSON.stringify({ error: { message, type: 'BadRequestError', code: 400 } }))
        return
      }
      const { authorization = '' } = request.headers
      const answer = await fetch(`${engineUrl}${request.url}`, {
        method: request.method,
        headers: { authorization, 'content-type': 'application/json' },
        ...(body.length === 0 ? {} : { body }),
      })
      response.writeHead(answer.status, { 'content-type': 'application/json' }).end(await answer.text())
    })()
  })
}
