import { randomBytes } from 'node:crypto'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { request } from 'node:http'
import { connect } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import fc from 'fast-check'
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest'
import { stringify } from 'yaml'
import type { Route } from '../../src/api/route.ts'
import { routes } from '../../src/api/routes/index.ts'
import { SCRIPTED } from '../support/answer-script.ts'
import { anyCallOf } from '../support/any-of-route.ts'
import { bashAgent } from '../support/bash-agent.ts'
import { ALLOW_ALL, startUp, type UpProcess } from '../support/up-process.ts'
import { runs } from '../support/runs.ts'

const SCOPES = ['trainer', 'node', 'read'] as const

let up: UpProcess
let siteDir: string
/** The session key of a running agent. */
let sandboxKey: string
/** A token with scope `node` that is limited to `rack-*`. No node of this server has such an id. */
const strayToken = `stray-${randomBytes(18).toString('hex')}`

/** Starts `polar up` with one token per scope, like the tokens it creates by default, and the stray token. */
async function startSite(): Promise<UpProcess> {
  siteDir = await mkdtemp(join(tmpdir(), 'polar-site-'))
  const tokens = Object.fromEntries(
    SCOPES.map((scope) => [scope, `${scope}-${randomBytes(18).toString('hex')}`]),
  ) as UpProcess['tokens']
  const entries = Object.entries({ ...tokens, stray: strayToken })
  await Promise.all(entries.map(([name, token]) => writeFile(join(siteDir, `${name}.token`), token, { mode: 0o600 })))
  const of = (name: string, more: object) => ({ name, ...more, token_file: `${name}.token` })
  const server = {
    tokens: [
      // The stray token comes first, so that the node of polar up has to select the right token.
      of('stray', { scopes: ['node'], nodes: ['rack-*'] }),
      of('trainer', { scopes: ['trainer', 'read'] }),
      of('node', { scopes: ['node'] }),
      of('read', { scopes: ['read'] }),
    ],
  }
  const file = join(siteDir, 'polar.yaml')
  await writeFile(file, stringify({ server, node: { allow: ALLOW_ALL } }))
  return startUp(['--config', file, ...SCRIPTED], tokens)
}

beforeAll(async () => {
  up = await startSite()
  const keyFile = join(up.dir, 'stolen-key')
  const agent = bashAgent(`call hello > answer.txt; printf %s "$OPENAI_API_KEY" > ${keyFile}; sleep 1000`)
  const task = {
    task_id: 'holds-a-key',
    instruction: 'none',
    timeout_seconds: 600,
    runtime: { backend: 'local' },
    agent: { harness: 'shell', custom_shell: { command: agent } },
  }
  const { status } = await send('POST', '/rollout/task/submit', { token: up.tokens.trainer, json: task })
  expect(status).toBe(200)
  await vi.waitFor(async () => expect((sandboxKey = await readFile(keyFile, 'utf8'))).not.toBe(''), {
    timeout: 30_000,
    interval: 100,
  })
}, 120_000)
afterAll(async () => {
  const log = up?.log()
  await up?.[Symbol.asyncDispose]()
  await rm(siteDir, { recursive: true, force: true })
  // No request of this file caused an internal error.
  expect(log).not.toContain('internal.bug')
  for (const token of [...Object.values(up?.tokens ?? {}), strayToken]) expect(log).not.toContain(token)
})

interface Sent {
  token?: string
  json?: unknown
  bytes?: Uint8Array | string
  headers?: Record<string, string>
}

interface Answered {
  status: number
  text: string
}

/** Sends a request without `fetch`, which normalizes paths. */
function send(method: string, path: string, { token, json, bytes, headers }: Sent = {}): Promise<Answered> {
  const { hostname, port } = new URL(up.url)
  return new Promise((resolve, reject) => {
    const body = json === undefined ? bytes : JSON.stringify(json)
    const call = request({
      hostname,
      port,
      path,
      method,
      headers: {
        ...(token !== undefined && { authorization: `Bearer ${token}` }),
        ...(body !== undefined && {
          'content-type': json === undefined ? 'application/octet-stream' : 'application/json',
        }),
        ...headers,
      },
      timeout: 30_000,
    })
    let isAnswered = false
    call.on('response', (response) => {
      isAnswered = true
      if (response.headers['content-type']?.startsWith('text/event-stream')) {
        response.destroy()
        resolve({ status: response.statusCode ?? 0, text: '' })
        return
      }
      const chunks: Buffer[] = []
      response.on('data', (chunk: Buffer) => chunks.push(chunk))
      response.on('end', () => resolve({ status: response.statusCode ?? 0, text: Buffer.concat(chunks).toString() }))
      response.on('error', reject)
    })
    call.on('timeout', () => call.destroy(new Error(`${method} ${path} was not answered`)))
    // The server may reset the connection of a rejected request after its answer.
    call.on('error', (error) => isAnswered || reject(error))
    call.end(body)
  })
}

/** Expects an error body in the common format, without stack, path of this machine, token or SQL. */
function expectPlainError({ status, text }: Answered, what: string): void {
  expect(status, `${what}: ${text.slice(0, 500)}`).toBeGreaterThanOrEqual(400)
  if (!isHonestRefusal({ status, text })) expect(status, `${what}: ${text.slice(0, 500)}`).toBeLessThan(500)
  expect(JSON.parse(text), what).toMatchObject({ error: { code: expect.any(String), message: expect.any(String) } })
  expectNoLeak(text, what)
}

/** True for a valid task that no node of this test can run, and for a pause that no node confirms in time. */
function isHonestRefusal({ status, text }: Pick<Answered, 'status' | 'text'>): boolean {
  return (
    (status === 503 && text.includes('"request.no-node"')) || (status === 504 && text.includes('"server.unconfirmed"'))
  )
}

function expectNoLeak(text: string, what: string): void {
  for (const token of [...Object.values(up.tokens), strayToken, sandboxKey])
    expect(text.includes(token), what).toBe(false)
  expect(text.includes(up.dir), `${what}: ${text.slice(0, 500)}`).toBe(false)
  expect(text, what).not.toMatch(/\n\s+at |node_modules|select .* from |insert into /i)
}

const table: readonly (readonly [name: string, route: Route])[] = Object.entries(routes)
const guarded = table.filter(([, { scopes }]) => scopes.length > 0)

/** Returns a path with ids that do not exist, so that accepted requests have no effect. */
function pathOf({ path }: Route): string {
  return path.replaceAll(/\{(\w+)\}/g, (_, name: string) => (name === 'callback_id' ? '999999' : 'nobody'))
}

function sampleOf({ body }: Route): Sent {
  if (body === undefined) return {}
  return body.kind === 'json' ? { json: {} } : { bytes: 'x' }
}

describe('access by token and scope', { timeout: 120_000 }, () => {
  test.each(guarded)(
    '%s: rejected without a token, with a wrong token and with the key of a sandbox',
    async (name, route) => {
      const [method, path] = [route.method.toUpperCase(), pathOf(route)]
      const sample = sampleOf(route)
      const near = `${up.tokens.trainer.slice(0, -1)}${up.tokens.trainer.endsWith('a') ? 'b' : 'a'}`
      for (const token of [undefined, '', 'x', near, sandboxKey, `${up.tokens.trainer} ${up.tokens.node}`]) {
        const answer = await send(method, path, { ...sample, token })
        expect(answer.status, `${name} with ${token}: ${answer.text}`).toBe(401)
        expectPlainError(answer, name)
      }
      for (const header of ['x-api-key', 'x-goog-api-key', 'x-session-id', 'x-polar-control-token']) {
        const answer = await send(method, path, { ...sample, headers: { [header]: sandboxKey } })
        expect(answer.status, `${name} with the key as ${header}`).toBe(401)
      }
      const inQuery = await send(method, `${path}?key=${up.tokens.trainer}&token=${up.tokens.trainer}`, sample)
      expect(inQuery.status, `${name} with a token in its address`).toBe(401)
    },
  )

  test.each(guarded)('%s: accepted only with a scope of the route', async (name, route) => {
    for (const scope of SCOPES) {
      const answer = await send(route.method.toUpperCase(), pathOf(route), {
        ...sampleOf(route),
        token: up.tokens[scope],
      })
      const what = `${name} as ${scope}: ${answer.text.slice(0, 300)}`
      if (route.scopes.includes(scope)) expect([401, 403], what).not.toContain(answer.status)
      else {
        expect(answer.status, what).toBe(403)
        expectPlainError(answer, what)
      }
      expect(answer.status, what).toBeLessThan(500)
      expectNoLeak(answer.text, what)
    }
  })

  test('public routes disclose no tokens, paths or task ids', async () => {
    for (const [name, route] of table.filter(([, { scopes }]) => scopes.length === 0)) {
      const { status, text } = await send('GET', pathOf(route))
      expect(status, name).toBe(200)
      expectNoLeak(text, name)
      expect(text, name).not.toContain('holds-a-key')
    }
  })

  test('the gateway rejects tokens of the server and does not forward requests to the server', async () => {
    const { text } = await send('GET', '/nodes', { token: up.tokens.read })
    const [{ gateway_url: gateway }] = JSON.parse(text) as [{ gateway_url: string }]
    for (const path of ['/rollout/status', '/tasks', '/nodes', '/rollout/task/holds-a-key']) {
      for (const token of [up.tokens.trainer, sandboxKey]) {
        const response = await fetch(`${gateway}${path}`, { headers: { authorization: `Bearer ${token}` } })
        expect(response.status, path).toBeGreaterThanOrEqual(400)
        expect(await response.text(), path).not.toContain('pipeline')
      }
    }
  })
})

describe('a node token of another node', { timeout: 120_000 }, () => {
  /** An existing node and its running session. */
  let nodeId: string
  let sessionId: string
  beforeAll(async () => {
    const nodes = JSON.parse((await send('GET', '/nodes', { token: up.tokens.read })).text) as [{ node_id: string }]
    nodeId = nodes[0].node_id
    const { text } = await send('GET', '/tasks/holds-a-key/sessions', { token: up.tokens.read })
    sessionId = (JSON.parse(text) as { sessions: [{ session_id: string }] }).sessions[0].session_id
  })

  function sendAsStray(route: Route, id: string, sample: Sent): Promise<Answered> {
    const path = pathOf({ ...route, path: route.path.replace('{node_id}', id) as Route['path'] })
    return send(route.method.toUpperCase(), path, { ...sample, token: strayToken })
  }

  /** Returns a request body that names the node `id`, if the route has a field for it. */
  function bodyOf({ nodeField, examples, ...route }: Route, id: string): Sent {
    if (nodeField !== 'node_id') return sampleOf(route)
    return { json: { ...(examples?.body as object), node_id: id } }
  }

  test.each(guarded)(
    '%s: forbidden for other nodes, with the same answer for existing and unknown nodes',
    async (name, route) => {
      const isAboutNode = route.path.includes('{node_id}') || route.nodeField !== undefined
      if (!route.scopes.includes('node')) {
        expect((await sendAsStray(route, nodeId, sampleOf(route))).status, name).toBe(403)
        return
      }
      if (!isAboutNode) {
        const { status, text } = await sendAsStray(route, nodeId, sampleOf(route))
        expect([status, text.includes(nodeId)], `${name}: ${text}`).toEqual([200, false])
        return
      }
      const existing = await sendAsStray(route, nodeId, bodyOf(route, nodeId))
      const unknown = await sendAsStray(route, 'nobody', bodyOf(route, 'nobody'))
      for (const answer of [existing, unknown]) {
        expect(answer.status, `${name}: ${answer.text}`).toBe(403)
        expectPlainError(answer, name)
        expect(JSON.parse(answer.text), name).toMatchObject({ error: { code: 'request.forbidden' } })
      }
      expect(existing.text.replaceAll(nodeId, 'nobody'), name).toBe(unknown.text)
      // Other errors of the request are reported only to callers with access.
      const own = await sendAsStray(route, 'rack-7', bodyOf(route, 'rack-7'))
      expect([401, 403], `${name}: ${own.text}`).not.toContain(own.status)
      expect(own.status, own.text).toBeLessThan(500)
    },
  )

  test('it cannot complete, upload or release the session of another node under its own node id', async () => {
    const [sample] = fc.sample(anyCallOf(routes.completeSession), { numRuns: 1, seed: 1 })
    const { outcome } = sample!.body as { outcome: object }
    const theirs = { sessionId, taskId: 'holds-a-key', attempt: 1, status: 'COMPLETED' }
    const complete = (id: string) =>
      send('POST', '/nodes/rack-7/complete', {
        token: strayToken,
        json: { outcome: { ...outcome, ...theirs, nodeId: id } },
      })
    expect(await complete(nodeId)).toMatchObject({ status: 403 })
    expect(JSON.parse((await complete('rack-7')).text)).toMatchObject({ error: { code: 'request.stale' } })

    const upload = { session_id: sessionId, attempt: 1, bytes: 1, digest: `sha256:${'0'.repeat(64)}` }
    const begun = await send('POST', '/nodes/rack-7/uploads', { token: strayToken, json: upload })
    expect(JSON.parse(begun.text)).toMatchObject({ error: { code: 'request.stale' } })

    const result = routes.postSessionResult.examples.body
    for (const [node_id, expected] of [
      [nodeId, 'request.forbidden'],
      [null, 'request.forbidden'],
      ['', 'request.forbidden'],
      ['rack-7', 'request.stale'],
    ]) {
      const json = { ...result, session_id: sessionId, task_id: 'holds-a-key', node_id }
      const { text } = await send('POST', '/callbacks/session_result', { token: strayToken, json })
      expect(JSON.parse(text), `as ${node_id}`).toMatchObject({ error: { code: expected } })
    }
    const lease = { leases: [{ session_id: sessionId, attempt: 1 }] }
    const released = await send('POST', '/nodes/rack-7/release', { token: strayToken, json: lease })
    expect(JSON.parse(released.text)).toEqual({ released: [] })
    const { text } = await send('GET', `/sessions/${sessionId}`, { token: up.tokens.read })
    expect(JSON.parse(text), 'all the while').toMatchObject({ status: 'RUNNING', node_id: nodeId })
  })

  test('it lists only its own nodes', async () => {
    const registration = { ...routes.registerNode.examples.body, node_id: 'rack-7' }
    expect(await send('POST', '/nodes/register', { token: strayToken, json: registration })).toMatchObject({
      status: 200,
    })
    const { text } = await send('GET', '/nodes', { token: strayToken })
    expect((JSON.parse(text) as { node_id: string }[]).map(({ node_id: id }) => id)).toEqual(['rack-7'])
    expect(await send('DELETE', '/nodes/rack-7', { token: strayToken })).toMatchObject({ status: 200 })
  })
})

describe('path traversal in names', { timeout: 60_000 }, () => {
  const ways = [
    '..',
    '../..',
    '../../etc/passwd',
    '/etc/passwd',
    '.',
    'a/../../b',
    'a\0b',
    '%2e%2e',
    '..\\..',
    '-rf',
    '~',
    'con',
  ]
  const encodings = [
    encodeURIComponent,
    (text: string) => encodeURIComponent(encodeURIComponent(text)),
    (text: string) => [...Buffer.from(text)].map((byte) => `%${byte.toString(16).padStart(2, '0')}`).join(''),
  ]
  test.each(guarded.filter(([, { path }]) => path.includes('{')))('%s', async (name, route) => {
    const token = up.tokens[route.scopes[0]!]
    for (const way of ways) {
      for (const encode of encodings) {
        const path = route.path.replaceAll(/\{\w+\}/g, encode(way))
        const answer = await send(route.method.toUpperCase(), path, { ...sampleOf(route), token })
        const what = `${name} ${path}: ${answer.text.slice(0, 300)}`
        // Tasks may have such ids, since a task id never becomes a file name; other ids may not.
        expect(answer.status, what).toBeLessThan(500)
        expect(answer.text, what).not.toContain('root:')
        expectNoLeak(answer.text, what)
        if (answer.status >= 400) expectPlainError(answer, what)
      }
    }
  })

  test('artifact paths outside the session are rejected', async () => {
    const { text } = await send('GET', '/tasks/holds-a-key/sessions', { token: up.tokens.read })
    const [{ session_id }] = (JSON.parse(text) as { sessions: [{ session_id: string }] }).sessions
    for (const way of [
      '../tokens.json',
      '../../../../etc/passwd',
      '/etc/passwd',
      'a/../../../tokens.json',
      '..\\x',
      '',
    ]) {
      const path = `/sessions/${session_id}/artifact?path=${encodeURIComponent(way)}`
      expectPlainError(await send('GET', path, { token: up.tokens.read }), way)
    }
  })

  test('a task id may contain path separators and Unicode, and the task completes', async () => {
    for (const task_id of ['../../escape', '/etc/escape', 'a/b/c', '%2e%2e%2fescape', 'ünïcode 日本']) {
      const json = {
        task_id,
        instruction: '',
        agent: { harness: 'shell', custom_shell: { command: 'true' } },
        runtime: { backend: 'local' },
      }
      expect(await send('POST', '/rollout/task/submit', { token: up.tokens.trainer, json })).toMatchObject({
        status: 200,
      })
      const path = `/rollout/task/${encodeURIComponent(task_id)}?wait=30`
      const { status, text } = await send('GET', path, { token: up.tokens.read })
      expect(status, text).toBe(200)
      expect(JSON.parse(text), text).toMatchObject({ task_id, status: 'completed' })
    }
  })
})

describe('callback URLs to internal addresses', { timeout: 60_000 }, () => {
  test('addresses of the server and the gateway of polar up are rejected in every notation', async () => {
    const nodes = JSON.parse((await send('GET', '/nodes', { token: up.tokens.read })).text) as { gateway_url: string }[]
    const agent = { harness: 'shell', custom_shell: { command: 'true' } }
    const ports = [up.url, ...nodes.map(({ gateway_url }) => gateway_url)].map((url) => new URL(url).port)
    expect(ports).toHaveLength(2)
    for (const port of ports) {
      for (const host of [
        '127.0.0.1',
        'localhost',
        'x.localhost',
        '[::1]',
        '2130706433',
        '0177.0.0.1',
        '[::ffff:7f00:1]',
      ]) {
        const callback_url = `http://${host}:${port}/rollout/task/submit`
        const json = { task_id: 'calls-us', instruction: '', agent, callback_url }
        const answer = await send('POST', '/rollout/task/submit', { token: up.tokens.trainer, json })
        expect([answer.status, callback_url]).toEqual([422, callback_url])
        expect(answer.text).toContain('address of Polar itself')
      }
    }
  })

  test.each([
    'http://169.254.169.254/latest/meta-data/',
    'http://[fd00:ec2::254]/latest/',
    'http://metadata.google.internal/',
    'http://10.0.0.1/',
    'http://192.168.1.1:8080/x',
    'http://0.0.0.0/',
    'http://[::]/',
    'http://[::ffff:169.254.169.254]/',
    'http://2852039166/',
    'http://0xa9fea9fe/',
    'http://0251.0376.0251.0376/',
    'http://169.254.169.254.:80/',
    'http://127.0.0.1@169.254.169.254/',
    'http://example.com/',
    'file:///etc/passwd',
    'gopher://127.0.0.1:25/',
    'javascript:alert(1)',
    'http://user:pass@127.0.0.1/',
  ])('%s is rejected when the task is submitted', async (callback_url) => {
    const json = {
      task_id: `calls-${callback_url.length}-${callback_url.replaceAll(/\W/g, '')}`,
      instruction: '',
      agent: { harness: 'shell', custom_shell: { command: 'true' } },
      callback_url,
    }
    const answer = await send('POST', '/rollout/task/submit', { token: up.tokens.trainer, json })
    expectPlainError(answer, callback_url)
    expect([400, 403, 422]).toContain(answer.status)
  })

  test('a batch with a rejected callback URL stores no task', async () => {
    const agent = { harness: 'shell', custom_shell: { command: 'true' } }
    const tasks = [
      { task_id: 'batch-good', instruction: '', agent },
      { task_id: 'batch-bad', instruction: '', agent, callback_url: 'http://169.254.169.254/' },
    ]
    expectPlainError(await send('POST', '/tasks/batch', { token: up.tokens.trainer, json: { tasks } }), 'a batch')
    expect(await send('GET', '/rollout/task/batch-good', { token: up.tokens.read })).toMatchObject({ status: 404 })
  })
})

describe('invalid bodies', { timeout: 120_000 }, () => {
  const withBody = table.filter(([, { body }]) => body?.kind === 'json')

  test('a thousand random invalid bodies cause no internal error', async () => {
    const anyNoise = fc.oneof(
      fc.json().map((text) => Buffer.from(text)),
      fc.uint8Array({ maxLength: 200 }),
      fc.constantFrom(
        '',
        'null',
        '[]',
        '{"__proto__":{"scopes":["trainer"]}}',
        '{"constructor":{"prototype":{}}}',
        `${'['.repeat(50_000)}${']'.repeat(50_000)}`,
        `{"task_id":${'9'.repeat(5000)}}`,
        '{"task_id":"\\ud800"}',
        '{"task_id":"\\u0000"}',
        '{"a":1e999}',
        '{"a":1',
        '\ufeff{}',
      ),
    )
    const anyCall = fc.constantFrom(...withBody).chain(([name, route]) =>
      fc.record({
        name: fc.constant(name),
        route: fc.constant(route),
        /** A valid body with one changed field, or random data. */
        body: fc.oneof(
          anyNoise,
          fc.tuple(anyCallOf(route), fc.nat(), fc.jsonValue()).map(([{ body }, at, value]) => corrupt(body, at, value)),
        ),
        type: fc.constantFrom(
          'application/json',
          'application/json',
          'application/json; charset=utf-16',
          'text/plain',
          '',
        ),
      }),
    )
    await fc.assert(
      fc.asyncProperty(anyCall, async ({ name, route, body, type }) => {
        const answer = await send(route.method.toUpperCase(), pathOf(route), {
          token: up.tokens[route.scopes[0]!],
          bytes: body,
          headers: { 'content-type': type },
        })
        const what = `${name} ${Buffer.from(body).toString('utf8').slice(0, 300)}: ${answer.text.slice(0, 300)}`
        expectNoLeak(answer.text, what)
        if (answer.status >= 400) expectPlainError(answer, what)
      }),
      { numRuns: runs(250) },
    )
    expect(await send('GET', '/health')).toMatchObject({ status: 200 })
  })

  test('a body above the size limit of its route returns 413', async () => {
    for (const [name, route] of table.filter(
      ([, { body }]) => body !== undefined && body.maxBytes <= 4 * 1024 * 1024,
    )) {
      const token = up.tokens[route.scopes[0]!]
      const answer = await send(route.method.toUpperCase(), pathOf(route), {
        token,
        bytes: Buffer.alloc(route.body!.maxBytes + 1, 0x20),
        headers: { 'content-type': 'application/json' },
      })
      expect(answer.status, name).toBe(413)
      expectPlainError(answer, name)
    }
  })

  test('an upload of an unknown session and a part above the size limit are rejected', async () => {
    const token = up.tokens.node
    const digest = `sha256:${'0'.repeat(64)}`
    const begun = await send('POST', '/nodes/nobody/uploads', {
      token,
      json: { session_id: 'nobody', attempt: 1, bytes: 10, digest },
    })
    expectPlainError(begun, 'an upload for a session that is not there')
    const answer = await send('PUT', '/nodes/nobody/uploads/upl_1?offset=0', {
      token,
      bytes: Buffer.alloc(65 * 1024 * 1024),
    })
    expectPlainError(answer, 'a part of 65 MiB')
  })
})

/** Replaces one field of a valid body by `value`, or adds an unknown field. */
function corrupt(body: unknown, at: number, value: unknown): Uint8Array {
  if (typeof body !== 'object' || body === null) return Buffer.from(JSON.stringify(value) ?? '')
  const names = Object.keys(body)
  const name = names[at % Math.max(names.length, 1)]
  if (name === undefined || at % 7 === 0) return Buffer.from(JSON.stringify({ ...body, surprise: value }))
  return Buffer.from(JSON.stringify({ ...body, [name]: value }))
}

describe('slow and disconnected clients', { timeout: 120_000 }, () => {
  test('hundreds of unfinished requests do not delay other requests', async () => {
    const { hostname, port } = new URL(up.url)
    const head = `POST /rollout/task/submit HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${up.tokens.trainer}\r\nContent-Type: application/json\r\n`
    const openings = [
      'POST /rollout/',
      head,
      `${head}Content-Length: 100000\r\n\r\n{`,
      `${head}Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n`,
    ]
    const sockets = Array.from({ length: 400 }, (_, index) => {
      const socket = connect(Number(port), hostname)
      socket.on('error', () => {})
      socket.write(openings[index % openings.length]!)
      return socket
    })
    try {
      const drip = setInterval(() => sockets.forEach((socket) => socket.writable && socket.write(' ')), 500)
      await sleep(1000)
      const startedAt = performance.now()
      for (let count = 0; count < 20; count++) {
        expect(await send('GET', '/tasks?limit=1', { token: up.tokens.read })).toMatchObject({ status: 200 })
      }
      expect(performance.now() - startedAt).toBeLessThan(10_000)
      clearInterval(drip)
    } finally {
      for (const socket of sockets) socket.destroy()
    }
  })

  test('the server answers after hundreds of clients have disconnected from long polls', async () => {
    const { hostname, port } = new URL(up.url)
    for (let round = 0; round < 3; round++) {
      const calls = Array.from({ length: 200 }, () => {
        const call = request({
          hostname,
          port,
          path: '/rollout/task/holds-a-key?wait=60',
          headers: { authorization: `Bearer ${up.tokens.read}` },
        })
        call.on('error', () => {})
        call.end()
        return call
      })
      await sleep(500)
      for (const call of calls) call.destroy()
    }
    expect(await send('GET', '/rollout/task/holds-a-key', { token: up.tokens.read })).toMatchObject({ status: 200 })
  })
})

test('web pages of other origins get no access', async () => {
  const { port } = new URL(up.url)
  const rebound = await send('GET', '/tasks', { token: up.tokens.read, headers: { host: `evil.example:${port}` } })
  const foreign = await send('GET', '/tasks', { token: up.tokens.read, headers: { origin: 'https://evil.example' } })
  for (const { text } of [rebound, foreign]) expectNoLeak(text, 'a foreign page')
  const response = await fetch(`${up.url}/tasks`, {
    method: 'OPTIONS',
    headers: { origin: 'https://evil.example', 'access-control-request-method': 'GET' },
  })
  expect(response.headers.get('access-control-allow-origin')).toBeNull()
})
