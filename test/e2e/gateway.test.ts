import { spawn, spawnSync, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { readdirSync, readFileSync } from 'node:fs'
import { mkdir, mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import OpenAI from 'openai'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { createCallLogReader } from '../../src/store/call-log/reader.ts'

const main = fileURLToPath(new URL('../../src/cli/main.ts', import.meta.url))
const SCRIPT = `
scenarios:
  # Long enough between two tokens for a busy machine to change the weights.
  slow: [{ text: an answer of several tokens, per_token_ms: 1500 }]
default: { text: an answer of several tokens, per_token_ms: 20 }
`

const TOKEN = 'let-me-in-0123456789'

let scratch: string
let child: ChildProcess
let control: string

beforeAll(async () => {
  scratch = await mkdtemp(join(tmpdir(), 'polar-gateway-'))
  const script = join(scratch, 'script.yaml')
  await writeFile(script, SCRIPT)
  const flags = ['--script', script, '--out', join(scratch, 'out'), '--workers', '2', '--control-port', '0']
  const env = { ...process.env, POLAR_CONTROL_TOKEN: TOKEN }
  child = spawn(process.execPath, [main, 'gateway', ...flags], { env, stdio: ['ignore', 'pipe', 'ignore'] })
  const lines = createInterface({ input: child.stdout as NodeJS.ReadableStream })
  control = ((await once(lines, 'line')) as [string])[0]
})

afterAll(async () => {
  const exited = once(child, 'exit')
  child.kill('SIGTERM')
  const [code] = (await exited) as [number | null]
  await rm(scratch, { recursive: true, force: true })
  expect(code).toBe(0)
})

async function callControl(
  method: string,
  path: string,
  body?: unknown,
  token = TOKEN,
): Promise<{ status: number; body: Record<string, unknown> }> {
  const response = await fetch(control + path, {
    method,
    headers: { authorization: `Bearer ${token}` },
    body: body === undefined ? undefined : JSON.stringify(body),
  })
  const text = await response.text()
  return {
    status: response.status,
    body: text.startsWith('{') ? (JSON.parse(text) as Record<string, unknown>) : { text },
  }
}

interface Access {
  session_id: string
  base_url: string
  api_key: string
}

async function open(options: object = {}): Promise<Access> {
  return (await callControl('POST', '/sessions', options)).body as unknown as Access
}

function clientOf(access: Access): OpenAI {
  return new OpenAI({ baseURL: `${access.base_url}/v1`, apiKey: access.api_key, maxRetries: 0 })
}

const hello = { model: 'tiny', messages: [{ role: 'user' as const, content: 'hello' }] }

async function closed(access: Access): ReturnType<ReturnType<typeof createCallLogReader>['load']> {
  await callControl('DELETE', `/sessions/${access.session_id}`)
  return createCallLogReader({ dir: join(scratch, 'out') }).load(access.session_id)
}

describe('polar gateway with two processes', () => {
  test('distributes sessions over its ports; the data plane has no control routes', async () => {
    const sessions = await Promise.all([open(), open(), open(), open()])
    expect(new Set(sessions.map(({ base_url }) => new URL(base_url).port)).size).toBe(2)
    for (const access of sessions) {
      const answer = await clientOf(access).chat.completions.create(hello)
      expect(answer.choices[0]?.message.content).toBe('an answer of several tokens')
      const { origin } = new URL(access.base_url)
      for (const path of ['/sessions', '/admin/inference/pause', '/metrics', '/health']) {
        const response = await fetch(origin + path, { method: 'POST', headers: { authorization: `Bearer ${TOKEN}` } })
        expect(response.status).toBe(404)
      }
      expect(await closed(access)).toMatchObject({ complete: true, turns: [{ response: { grade: 'exact' } }] })
    }
    expect((await callControl('GET', '/metrics')).body['text']).toMatch(
      /polar_turns_total\{outcome="answered",grade="exact"\} [4-9]/,
    )
    expect((await callControl('GET', '/metrics', undefined, 'wrong')).status).toBe(401)
  })

  test('holds calls while paused, and records for every token the weight versions that may have sampled it', async () => {
    const access = await open({ sampling: { max_tokens: 3 } })
    await callControl('PUT', '/admin/weights', { weight_version: 'step-1' })
    const messages = [{ role: 'user' as const, content: 'SCRIPT:slow' }]
    const stream = await clientOf(access).chat.completions.create({ ...hello, messages, stream: true })
    const reading = (async () => {
      for await (const _chunk of stream) await callControl('PUT', '/admin/weights', { weight_version: 'step-2' })
    })()
    await reading
    expect((await callControl('POST', '/admin/inference/pause?timeout_seconds=10')).body).toMatchObject({
      paused: true,
      inflight: 0,
    })
    let isAnswered = false
    const held = clientOf(access)
      .chat.completions.create(hello)
      .then(() => (isAnswered = true))
    await sleep(300)
    expect(isAnswered).toBe(false)
    await callControl('PUT', '/admin/weights', { weight_version: 'step-3' })
    await callControl('POST', '/admin/inference/resume')
    await held
    const { turns } = await closed(access)
    const spans = turns.map((turn) => turn.response?.choices[0]?.weightSpans)
    expect(spans[0]?.[0]).toEqual({ from: 0, version: 'step-1' })
    // Tokens that arrive after the change may have been sampled before it.
    expect(spans[0]?.slice(1)).toEqual([{ from: expect.any(Number), version: 'step-1', newest: 'step-2' }])
    expect(spans[1]).toEqual([{ from: 0, version: 'step-3' }])
    // The token limit of the trainer overrides that of the harness.
    expect(turns.map((turn) => turn.response?.choices[0]?.ids.length)).toEqual([3, 3])
    expect(turns[0]?.response?.weightVersion).toBe('step-1')
  })

  test('after kill -9 of a data-plane process its sessions continue at the same address with the same key', async () => {
    const access = await open()
    await clientOf(access).chat.completions.create(hello)
    for (const pid of childrenOf(child.pid as number)) process.kill(pid, 'SIGKILL')
    const answer = await retried(() => clientOf(access).chat.completions.create(hello))
    expect(answer.choices[0]?.message.content).toBe('an answer of several tokens')
    const session = await closed(access)
    expect(session.turns.map((turn) => turn.index)).toEqual([0, 1])
    expect(session.turns.every((turn) => turn.response?.grade === 'exact')).toBe(true)
    // No call was in flight, so nothing is missing.
    expect(session.incompleteReasons).toEqual([])
    expect(session.complete).toBe(true)
  })
})

test('the examples of help and docs open a session, with a token file that only the user can read', async () => {
  const cwd = join(scratch, 'alone')
  await mkdir(cwd)
  const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => name !== 'POLAR_CONTROL_TOKEN'))
  const flags = ['--script', join(scratch, 'script.yaml'), '--control-port', '0']
  const alone = spawn(process.execPath, [main, 'gateway', ...flags], { cwd, env, stdio: ['ignore', 'pipe', 'pipe'] })
  try {
    const notice = once(createInterface({ input: alone.stderr }), 'line')
    const [url] = (await once(createInterface({ input: alone.stdout }), 'line')) as [string]
    const file = join(cwd, '.polar/sessions/control.token')
    expect((await stat(file)).mode & 0o777).toBe(0o600)
    expect(await notice).toEqual([`Token of the control API: ${file}`])
    const help = spawnSync(process.execPath, [main, 'gateway', '--help'], { encoding: 'utf8' }).stdout
    const page = await readFile(new URL('../../docs/gateway.md', import.meta.url), 'utf8')
    for (const text of [help, page]) {
      const [example = ''] =
        /^ *curl -X POST http:\/\/127\.0\.0\.1:8081\/sessions(?:[^\n]*\\\n)*[^\n]*$/m.exec(text) ?? []
      const command = example.replace('http://127.0.0.1:8081', url)
      const { stdout, status } = spawnSync('sh', ['-c', command], { cwd, encoding: 'utf8' })
      expect([status, JSON.parse(stdout)]).toEqual([0, expect.objectContaining({ api_key: expect.any(String) })])
    }
    for (const [headers, status] of [
      [{}, 401],
      [{ authorization: 'Bearer ' }, 401],
      [{ authorization: `Bearer ${await readFile(file, 'utf8')}`.trim(), origin: 'https://evil.example' }, 403],
    ] as const)
      expect((await fetch(`${url}/sessions`, { method: 'POST', headers })).status).toBe(status)
  } finally {
    alone.kill('SIGTERM')
    await once(alone, 'exit')
  }
})

test.each(['', 'short', 'with a space in its middle'])(
  'the control token %j is rejected before anything starts',
  (token) => {
    const run = spawnSync(process.execPath, [main, 'gateway', '--control-token', token], { encoding: 'utf8' })
    expect([run.status, run.stdout]).toEqual([2, ''])
    expect(run.stderr).toMatch(/^polar gateway: the control token /)
  },
)

function childrenOf(pid: number): number[] {
  return readdirSync('/proc').flatMap((name) => {
    if (!/^\d+$/.test(name)) return []
    try {
      const status = readFileSync(`/proc/${name}/stat`, 'utf8')
      return Number(status.slice(status.lastIndexOf(')') + 2).split(' ')[1]) === pid ? [Number(name)] : []
    } catch {
      return []
    }
  })
}

async function retried<T>(work: () => Promise<T>): Promise<T> {
  for (let tries = 0; ; tries++) {
    try {
      return await work()
    } catch (error) {
      if (tries === 100) throw error
      await sleep(50)
    }
  }
}
