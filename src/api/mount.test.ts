import { gunzipSync, zstdCompressSync, zstdDecompressSync } from 'node:zlib'
import { describe, expect, test } from 'vitest'
import * as z from 'zod'
import { JsonBytes } from '../lib/json/json-bytes.ts'
import { RolloutError } from '../model/failure.ts'
import { chooseCoding } from './compress.ts'
import { JsonStream, StoredJson } from './json-stream.ts'
import { type Handlers, mountRoutes } from './mount.ts'
import { json, jsonBody, route } from './route.ts'

const about = { origin: 'polar', tag: 'server', summary: 'For tests.', isIdempotent: true } as const

const table = {
  getThing: route({
    ...about,
    method: 'get',
    path: '/things/{thing_id}',
    scopes: ['read'],
    params: z.strictObject({ thing_id: z.int() }),
    query: z.strictObject({ deep: z.boolean().default(false), tags: z.array(z.string()).optional() }),
    answer: json(z.object({ said: z.unknown() })),
  }),
  putThing: route({
    ...about,
    method: 'put',
    path: '/things/{thing_id}',
    scopes: ['trainer'],
    params: z.strictObject({ thing_id: z.int() }),
    body: jsonBody(
      z.strictObject({ name: z.string(), parts: z.array(z.strictObject({ size: z.int() })).default([]) }),
      200,
    ),
    answer: json(z.object({ said: z.unknown() })),
  }),
  putBytes: route({
    ...about,
    method: 'put',
    path: '/bytes',
    scopes: [],
    body: { kind: 'bytes', maxBytes: 10 },
    answer: json(z.object({ said: z.unknown() })),
  }),
  listLines: route({
    ...about,
    method: 'get',
    path: '/lines',
    scopes: [],
    query: z.strictObject({ skip: z.int().default(0) }),
    answer: { kind: 'ndjson', schema: z.int(), resumeBy: 'skip' },
  }),
  listEvents: route({
    ...about,
    method: 'get',
    path: '/events',
    scopes: [],
    query: z.object({ last_event_id: z.string().optional() }),
    answer: { kind: 'sse', schema: z.unknown() },
  }),
}

type Made = Partial<Handlers<typeof table, string>>

function mount(handlers: Made = {}, authorize: () => string = () => 'ann', more: { checkAnswers?: boolean } = {}) {
  const bugs: unknown[] = []
  const echo = async (call: { params: unknown; query: unknown; body: unknown; caller: string }) => ({
    said: { params: call.params, query: call.query, body: call.body, caller: call.caller },
  })
  const made: Handlers<typeof table, string> = {
    getThing: echo,
    putThing: echo,
    putBytes: async ({ body }) => ({ said: await new Response(body).text() }),
    listLines: async () => count(3),
    listEvents: async ({ query }) => oneEvent(query),
    ...handlers,
  }
  const app = mountRoutes({ table, handlers: made, authorize, onBug: (error) => bugs.push(error), ...more })
  return { app, bugs }
}

async function* count(to: number): AsyncGenerator<number> {
  for (let i = 0; i < to; i++) yield i
}

async function* oneEvent(data: unknown) {
  yield { id: '7-1', data }
  yield { data: 'ping' }
}

function put(body: string, headers: Record<string, string> = { 'content-type': 'application/json' }) {
  return { method: 'PUT', body, headers }
}

describe('mountRoutes()', () => {
  test('passes handlers the parsed request with defaults, and the caller', async () => {
    const { app } = mount()
    const response = await app.request('/things/7?deep=True&tags=a&tags=b')
    expect(await response.json()).toEqual({
      said: { params: { thing_id: 7 }, query: { deep: true, tags: ['a', 'b'] }, caller: 'ann' },
    })
  })

  test('treats an empty query field as absent', async () => {
    const { app } = mount()
    expect(await (await app.request('/things/7?deep=')).json()).toMatchObject({ said: { query: { deep: false } } })
  })

  test('reports all problems at once, each with its path, in both formats', async () => {
    const { app } = mount()
    const response = await app.request('/things/x?depp=1&deep=1&deep=0', { method: 'GET' })
    expect(response.status).toBe(422)
    expect(await response.json()).toMatchObject({
      error: { code: 'request.malformed', param: 'path.thing_id' },
      detail: [
        { loc: ['path', 'thing_id'] },
        { loc: ['query', 'deep'] },
        { loc: ['query', 'depp'], type: 'extra_forbidden' },
      ],
    })
  })

  test('refuses an unknown key with its path, at any depth', async () => {
    const { app } = mount()
    const response = await app.request('/things/7', put('{"name":"a","parts":[{"size":1,"sise":2}]}'))
    expect(await response.json()).toMatchObject({
      error: { param: 'body.parts.0.sise' },
      detail: [{ loc: ['body', 'parts', 0, 'sise'], type: 'extra_forbidden' }],
    })
  })

  test.each([
    ['is not JSON', '{', {}, 400],
    ['is not said to be JSON', '{"name":"a"}', { 'content-type': 'text/plain' }, 415],
    ['is compressed', '{"name":"a"}', { 'content-encoding': 'gzip' }, 415],
    ['is too long', JSON.stringify({ name: 'a'.repeat(300) }), {}, 413],
    ['nests too deep', '['.repeat(70), {}, 400],
    ['lacks a field', '{}', {}, 422],
  ])('refuses a body that %s', async (_, body, headers, status) => {
    const { app, bugs } = mount()
    const response = await app.request('/things/7', put(body, { 'content-type': 'application/json', ...headers }))
    expect([response.status, bugs]).toEqual([status, []])
  })

  test('limits a raw body without content-length', async () => {
    const { app } = mount()
    const stream = ReadableStream.from([Buffer.from('12345678'), Buffer.from('12345678')])
    const response = await app.request('/bytes', { method: 'PUT', body: stream, duplex: 'half' })
    expect(response.status).toBe(413)
    expect(await (await app.request('/bytes', put('1234'))).json()).toEqual({ said: '1234' })
  })

  test('authorizes before it parses the request', async () => {
    const { app } = mount({}, () => {
      throw new RolloutError('request.unauthorized', 'A token is needed.')
    })
    const response = await app.request('/things/x', put('{'))
    expect(response.status).toBe(401)
    expect(response.headers.get('www-authenticate')).toBe('Bearer')
    expect(await response.json()).toEqual({
      error: { code: 'request.unauthorized', message: 'A token is needed.' },
      detail: 'A token is needed.',
    })
  })

  test('distinguishes a wrong method from an unknown path', async () => {
    const { app } = mount()
    const wrong = await app.request('/things/7', { method: 'POST' })
    expect([wrong.status, wrong.headers.get('allow')]).toEqual([405, 'GET, PUT'])
    expect((await app.request('/thing')).status).toBe(404)
  })

  test('returns a RolloutError as it is, and hides a bug', async () => {
    const { app, bugs } = mount({
      getThing: async ({ params }) => {
        if (params.thing_id === 1) throw new RolloutError('request.over-quota', 'Enough.', { retryAfterSeconds: 2.5 })
        throw new Error('the password is 123')
      },
    })
    const busy = await app.request('/things/1')
    expect([busy.status, busy.headers.get('retry-after')]).toEqual([429, '3'])
    const broken = await app.request('/things/2')
    expect(broken.status).toBe(500)
    expect(await broken.text()).not.toContain('123')
    expect(bugs).toHaveLength(1)
  })

  test('sends JSON bytes, and compresses long responses', async () => {
    const text = JSON.stringify({ said: 'x'.repeat(20_000) })
    const { app } = mount({ getThing: async () => new JsonBytes([Buffer.from(text)]) })
    const get = async (accepted: string): Promise<Response> =>
      app.request('/things/1', { headers: { 'accept-encoding': accepted } })
    expect(await (await get('identity')).text()).toBe(text)
    expect(gunzipSync(await (await get('gzip')).arrayBuffer()).toString()).toBe(text)
    expect(zstdDecompressSync(await (await get('gzip, zstd')).arrayBuffer()).toString()).toBe(text)
  })

  test('streams lines and events', async () => {
    const { app } = mount()
    expect(await (await app.request('/lines')).text()).toBe('0\n1\n2\n')
    const response = await app.request('/events?last_event_id=1-1', { headers: { 'last-event-id': '5-5' } })
    expect(await response.text()).toBe('id: 7-1\ndata: {"last_event_id":"5-5"}\n\ndata: "ping"\n\n')
  })

  test.each(['identity', 'gzip', 'zstd'])('a client that disconnects (%s) aborts the handler', async (coding) => {
    const gone = Promise.withResolvers<void>()
    const { app } = mount({
      listLines: async ({ signal }) => {
        signal.addEventListener('abort', () => gone.resolve())
        return endless(signal)
      },
    })
    const response = await app.request('/lines', { headers: { 'accept-encoding': coding } })
    const reader = response.body!.getReader()
    await reader.read()
    await reader.cancel()
    await gone.promise
  })

  test('a failed stream ends with an error', async () => {
    const { app, bugs } = mount({ listLines: async () => failing() })
    await expect((await app.request('/lines')).text()).rejects.toThrow()
    expect(bugs).toHaveLength(1)
  })

  test('a failed stream closes the connection without sending the error text', async () => {
    const { app } = mount({ listLines: async () => failing() })
    const cut = Promise.withResolvers<string>()
    const outgoing = { destroy: () => cut.resolve('cut') }
    const response = await app.request('/lines', {}, { outgoing })
    const reader = response.body!.getReader()
    await reader.read()
    expect(await Promise.race([reader.read().catch(() => 'an error'), cut.promise])).toBe('cut')
  })
})

async function* endless(signal: AbortSignal): AsyncGenerator<number> {
  yield 1
  await new Promise((resolve) => signal.addEventListener('abort', resolve))
}

async function* failing(): AsyncGenerator<number> {
  yield 1
  throw new Error('broken')
}

test.each([
  ['', undefined],
  ['gzip;q=0, br', undefined],
  ['GZIP;q=0.5', 'gzip'],
  ['gzip, zstd;q=0.1', 'zstd'],
])('chooseCoding() of %j is %s', (accepted, coding) => {
  expect(chooseCoding(accepted)).toBe(coding)
})

describe('nodes that a request acts for', () => {
  const nodeTable = {
    renew: route({
      ...about,
      method: 'put',
      path: '/nodes/{node_id}',
      scopes: ['node'],
      params: z.strictObject({ node_id: z.string() }),
      body: jsonBody(z.object({ outcome: z.object({ nodeId: z.string().nullish() }).optional() })),
      nodeField: 'outcome.nodeId',
      answer: json(z.object({ said: z.unknown() })),
    }),
  }
  const asked: (string | undefined)[] = []
  const app = mountRoutes({
    table: nodeTable,
    handlers: { renew: async ({ body }) => ({ said: body }) },
    authorize: () => 'ann',
    authorizeNode(caller, { path }, nodeId) {
      asked.push(nodeId)
      if (nodeId !== 'mine') throw new RolloutError('request.forbidden', `${caller} ${path} ${nodeId}`)
    },
    onBug(error) {
      throw error
    },
  })

  test.each([
    ['mine', '{"outcome":{"nodeId":"mine"}}', 200, ['mine', 'mine']],
    ['mine', '{"outcome":{"nodeId":"theirs"}}', 403, ['mine', 'theirs']],
    ['mine', '{"outcome":{"nodeId":null}}', 403, ['mine', undefined]],
    ['mine', '{"outcome":{"nodeId":""}}', 403, ['mine', undefined]],
    ['mine', '{}', 403, ['mine', undefined]],
    // That of the path is asked for before anything of the body is read.
    ['theirs', 'no JSON', 403, ['theirs']],
    ['%74heirs', '{"outcome":{"nodeId":"mine"}}', 403, ['theirs']],
  ])('in the path %s and the body %s', async (nodeId, body, status, expected) => {
    asked.length = 0
    const response = await app.request(`/nodes/${nodeId}`, put(body))
    expect([response.status, asked]).toEqual([status, expected])
  })
})

describe('streamed JSON responses', () => {
  const text = JSON.stringify({ said: ['é', 'x'.repeat(100_000)] })

  async function* inPieces(): AsyncGenerator<Uint8Array> {
    const bytes = Buffer.from(text)
    for (let at = 0; at < bytes.length; at += 4001) yield bytes.subarray(at, at + 4001)
  }

  const stored = () => {
    const bytes = zstdCompressSync(text)
    return new StoredJson(new Blob([bytes]).stream(), bytes.length)
  }

  test('are streamed, and compressed for clients that accept it', async () => {
    const { app } = mount({ getThing: async () => new JsonStream(inPieces()) })
    expect(await (await app.request('/things/7')).text()).toBe(text)
    const zipped = await app.request('/things/7', { headers: { 'accept-encoding': 'gzip' } })
    expect(gunzipSync(await zipped.bytes()).toString()).toBe(text)
  })

  test('are sent as stored to clients that accept zstd, and decompressed to others', async () => {
    const { app } = mount({ getThing: async () => stored() })
    const packed = await app.request('/things/7', { headers: { 'accept-encoding': 'zstd' } })
    expect(packed.headers.get('content-encoding')).toBe('zstd')
    expect(Number(packed.headers.get('content-length'))).toBe(zstdCompressSync(text).length)
    expect(zstdDecompressSync(await packed.bytes()).toString()).toBe(text)
    const plain = await app.request('/things/7')
    expect(plain.headers.get('content-encoding')).toBe(null)
    expect(await plain.text()).toBe(text)
  })

  test('are one line each in a stream of lines', async () => {
    const lines = async function* () {
      yield new JsonStream(new Blob(['{"said":\n', '\r\n1}']).stream())
      yield 7
    }
    const { app } = mount({ listLines: async () => lines() as AsyncGenerator<number> })
    expect(await (await app.request('/lines')).text()).toBe('{"said":   1}\n7\n')
  })

  test('are cut, not ended, if the stored file is damaged', async () => {
    const bytes = zstdCompressSync(text)
    const damaged = () => new StoredJson(new Blob([bytes.subarray(0, -9)]).stream(), bytes.length)
    const { app } = mount({ getThing: async () => damaged() })
    let isCut = false
    const env = { outgoing: { destroy: () => void (isCut = true) } }
    const response = await app.request('/things/7', {}, env)
    let isEnded = false
    void response.text().then(() => void (isEnded = true))
    await expect.poll(() => isCut).toBe(true)
    expect(isEnded).toBe(false)
  })

  test('leave nothing open if the client disconnects before the first byte', async () => {
    let isCancelled = false
    const stream = new ReadableStream<Uint8Array>({ cancel: () => void (isCancelled = true) })
    const { app } = mount({ getThing: async () => new StoredJson(stream, 10) })
    const response = await app.request('/things/7')
    await response.body!.cancel()
    await expect.poll(() => isCancelled).toBe(true)
  })

  test('are validated against the schema in tests, and still sent', async () => {
    const made = { getThing: async () => stored() }
    const { app } = mount(made, () => 'ann', { checkAnswers: true })
    expect(await (await app.request('/things/7')).text()).toBe(text)
    const wrong = { getThing: async () => new JsonStream(new Blob(['[]']).stream()) }
    const other = mount(wrong, () => 'ann', { checkAnswers: true })
    expect((await other.app.request('/things/7')).status).toBe(500)
  })
})
