import { createHash } from 'node:crypto'
import { EventEmitter, once } from 'node:events'
import { createServer, type IncomingMessage, type RequestListener, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { getRequestListener } from '@hono/node-server'
import { describe, expect, expectTypeOf, onTestFinished, test } from 'vitest'
import { type Handlers, mountRoutes } from '../api/mount.ts'
import { readAll } from '../api/limit-stream.ts'
import { type Routes, routes } from '../api/routes/index.ts'
import type { Clock } from '../lib/async/clock.ts'
import { systemClock } from '../lib/async/clock.ts'
import { RolloutError } from '../model/failure.ts'
import type { SessionResult } from '../model/session.ts'
import { type ClientOptions, createClient } from './client.ts'
import { uploadFile } from './upload.ts'

/** A clock whose delays end at once and are recorded. */
function createHurriedClock(): Clock & { waits: number[] } {
  const waits: number[] = []
  return {
    waits,
    now: Date.now,
    after(ms, call) {
      if (ms >= 60_000) return systemClock.after(ms, call)
      waits.push(ms)
      return systemClock.after(0, call)
    },
  }
}

async function listen(listener: RequestListener): Promise<string> {
  const server = createServer(listener)
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  onTestFinished(() => {
    server.closeAllConnections()
    server.close()
  })
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`
}

async function connect(listener: RequestListener, options: Partial<ClientOptions> = {}) {
  const clock = createHurriedClock()
  const client = createClient({ baseUrl: await listen(listener), clock, random: () => 1, ...options })
  return { client, clock }
}

function mount(handlers: Partial<Handlers<Routes, string>>): RequestListener {
  const app = mountRoutes({
    table: routes,
    handlers: handlers as Handlers<Routes, string>,
    authorize: (request) => request.headers.get('authorization') ?? '',
    onBug(error) {
      throw error
    },
    checkAnswers: true,
  })
  const listener = getRequestListener(app.fetch)
  return (incoming, outgoing) => void listener(incoming, outgoing)
}

/** One response per request; the last one repeats. */
function script(...answers: ((outgoing: ServerResponse, incoming: IncomingMessage) => void)[]) {
  const seen: IncomingMessage[] = []
  const listener: RequestListener = (incoming, outgoing) => {
    const answer = answers[Math.min(seen.length, answers.length - 1)]
    seen.push(incoming)
    incoming.resume()
    answer?.(outgoing, incoming)
  }
  return { seen, listener }
}

const healthy = (outgoing: ServerResponse): void => void outgoing.end('{"status":"ok","nodes":1}')
const hangUp = (outgoing: ServerResponse): void => void outgoing.destroy()
const status =
  (code: number, body: unknown = '<html>no</html>', headers = {}) =>
  (outgoing: ServerResponse): void =>
    void outgoing.writeHead(code, headers).end(typeof body === 'string' ? body : JSON.stringify(body))

async function collectGarbage(): Promise<void> {
  setFlagsFromString('--expose-gc')
  ;(runInNewContext('gc') as () => void)()
  await new Promise((resolve) => setTimeout(resolve, 10))
}

describe('createClient()', () => {
  test('sends its token, and returns the response', async () => {
    const policies: unknown[] = []
    const applied = { change: 1, paused: false, mode: 'drain' as const, nodes: [] }
    const listener = mount({
      putPolicy: async ({ body, caller }) => {
        policies.push([body, caller])
        return { ...applied, version: body.version }
      },
    })
    const { client } = await connect(listener, { token: 's3cret' })
    expect(await client.putPolicy({ body: { version: 3 } })).toEqual({ ...applied, version: 3 })
    expect(policies).toEqual([[{ version: 3, resume: false, timeout_seconds: 120 }, 'Bearer s3cret']])
  })

  test('sends the strict header, and one idempotency key with all tries of a submit', async () => {
    const seen: (string | null)[][] = []
    const fetch = async (request: Request): Promise<Response> => {
      seen.push([request.headers.get('idempotency-key'), request.headers.get('x-polar-strict')])
      const isFirst = seen.length === 1
      return isFirst ? new Response('', { status: 503 }) : Response.json({ task_id: 't', status: 'running' })
    }
    let keys = 0
    const newKey = (): string => `key-${++keys}`
    const client = createClient({ baseUrl: 'http://server.test', fetch, newKey, baseDelayMs: 0, maxDelayMs: 0 })
    const body = { task_id: 't', instruction: '', agent: { harness: 'pi' } }
    await client.submitTask({ body })
    await client.submitTask({ body })
    await client.submitTask({ body, idempotencyKey: 'mine' })
    expect(seen).toEqual([
      ['key-1', 'true'],
      ['key-1', 'true'],
      ['key-2', 'true'],
      ['mine', 'true'],
    ])
  })

  test("throws the server's own failure", async () => {
    const listener = mount({
      getTask: async ({ params }) => {
        throw new RolloutError('request.not-found', `There is no task ${params.task_id}.`, { param: 'path.task_id' })
      },
    })
    const { client, clock } = await connect(listener)
    await expect(client.getTask({ params: { task_id: 'a/b' } })).rejects.toMatchObject({
      failure: { code: 'request.not-found', message: 'There is no task a/b.', status: 404, param: 'path.task_id' },
    })
    expect(clock.waits).toEqual([])
  })

  test.each([
    [409, { detail: 'still running' }, 'request.conflict', 'still running'],
    [404, '<html>nginx</html>', 'request.not-found', 'nginx'],
    [418, { error: { code: 'of.the-future', message: 'teapot' } }, 'request.malformed', 'teapot'],
    [500, 'oops', 'server.failed', 'oops'],
  ])('maps an error %i of another server', async (code, body, failure, text) => {
    const { client } = await connect(script(status(code, body)).listener)
    await expect(client.getHealth()).rejects.toMatchObject({ code: failure, message: expect.stringContaining(text) })
  })

  test('retries with growing delays without a complete response', async () => {
    const { listener, seen } = script(hangUp, status(503), status(502), healthy)
    const { client, clock } = await connect(listener)
    expect(await client.getHealth()).toEqual({ status: 'ok', nodes: 1 })
    expect(seen).toHaveLength(4)
    expect(clock.waits).toEqual([200, 400, 800])
  })

  test('retries when the body of a response was cut', async () => {
    const cut = (outgoing: ServerResponse): void => {
      outgoing.writeHead(200, { 'content-length': 25 }).write('{"status"')
      setImmediate(() => outgoing.destroy())
    }
    const { client } = await connect(script(cut, healthy).listener)
    expect(await client.getHealth()).toEqual({ status: 'ok', nodes: 1 })
  })

  test('waits for retry-after', async () => {
    const { client, clock } = await connect(script(status(429, '', { 'retry-after': '7' }), healthy).listener)
    await client.getHealth()
    expect(clock.waits).toEqual([7000])
  })

  test('fails after the maximum number of tries, with the URL', async () => {
    const { listener, seen } = script(hangUp)
    const { client } = await connect(listener, { attempts: 3 })
    await expect(client.getHealth()).rejects.toMatchObject({
      code: 'server.unreachable',
      message: /GET http.*\/health/,
    })
    expect(seen).toHaveLength(3)
  })

  test('does not retry a request that is not idempotent', async () => {
    const { listener, seen } = script(hangUp)
    const { client } = await connect(listener)
    await expect(client.retrySession({ params: { session_id: 's' } })).rejects.toMatchObject({
      code: 'server.unreachable',
    })
    expect(seen).toHaveLength(1)
  })

  test('retries any request that was never sent', async () => {
    const clock = createHurriedClock()
    const server = createServer().listen(0, '127.0.0.1')
    await once(server, 'listening')
    const closed = (server.address() as AddressInfo).port
    server.close()
    await once(server, 'close')
    const client = createClient({ baseUrl: `http://127.0.0.1:${closed}`, clock })
    await expect(client.retrySession({ params: { session_id: 's' } })).rejects.toMatchObject({
      code: 'server.unreachable',
      message: /ECONNREFUSED/,
    })
    expect(clock.waits).toHaveLength(4)
  })

  test('stops when the signal is aborted, also during a delay', async () => {
    const hung = new AbortController()
    const { client } = await connect(script(() => hung.abort(new Error('enough'))).listener)
    await expect(client.getHealth({ signal: hung.signal })).rejects.toThrow('enough')

    const waiting = new AbortController()
    const slow: Clock = {
      now: Date.now,
      after: () => (queueMicrotask(() => waiting.abort(new Error('stop'))), () => {}),
    }
    const { client: patient } = await connect(script(hangUp).listener, { clock: slow })
    await expect(patient.getHealth({ signal: waiting.signal })).rejects.toThrow('stop')
  })

  test('does not send its token to another host', async () => {
    const elsewhere = script(healthy)
    const target = await listen(elsewhere.listener)
    const { client } = await connect(script(status(307, '', { location: `${target}/health` })).listener, {
      token: 's3cret',
      attempts: 1,
    })
    await expect(client.getHealth()).rejects.toMatchObject({ code: 'server.unreachable' })
    expect(elsewhere.seen).toHaveLength(0)
  })

  test('rejects a response that does not match the API', async () => {
    const { client } = await connect(script(status(200, { status: 'ok' })).listener)
    await expect(client.getHealth()).rejects.toMatchObject({ code: 'server.bad-answer', message: /nodes/ })
  })

  test('rejects an id that would change the path', () => {
    const client = createClient({ baseUrl: 'http://127.0.0.1:1' })
    return expect(client.cancelTask({ params: { task_id: '..' } })).rejects.toMatchObject({ code: 'request.malformed' })
  })
})

test('the types of a call are those of its route', () => {
  const client = createClient({ baseUrl: 'http://127.0.0.1:1' })
  expectTypeOf(client.getHealth).returns.resolves.toEqualTypeOf<{ status: 'ok'; nodes: number }>()
  expectTypeOf(client.getTask).parameter(0).toHaveProperty('params').toEqualTypeOf<{ task_id: string }>()
  expectTypeOf(client.streamTaskResults).returns.toExtend<AsyncIterable<SessionResult>>()
  expectTypeOf(client.getArtifact).returns.resolves.toEqualTypeOf<ReadableStream<Uint8Array>>()
  expectTypeOf(client.getHealth).toBeCallableWith()
  expectTypeOf(client.listTasks).toBeCallableWith({ query: { limit: 3 } })
  // @ts-expect-error: a task needs an id
  expectTypeOf(client.getTask).toBeCallableWith()
  // @ts-expect-error: a route accepts only its own fields
  expectTypeOf(client.listTasks).toBeCallableWith({ query: { limmit: 3 } })
})

describe('streams', () => {
  test('events resume after a lost connection, and end when the signal is aborted', async () => {
    const asked: unknown[] = []
    const ids: unknown[] = []
    const news = new EventEmitter()
    const heard = async (id: string): Promise<void> => {
      while (!ids.includes(id)) await once(news, 'heard')
    }
    const listener = mount({
      streamEvents: async ({ query }) => {
        asked.push(query.last_event_id)
        return twoEvents(Number(query.last_event_id ?? 0), heard)
      },
    })
    const { client } = await connect(listener)
    const stop = new AbortController()
    const reading = (async () => {
      for await (const { id, data } of client.streamEvents({ signal: stop.signal })) {
        if (data.type !== 'hello') ids.push(id)
        news.emit('heard')
        if (ids.length === 5) stop.abort(new Error('heard enough'))
      }
    })()
    await expect(reading).rejects.toThrow('heard enough')
    expect(ids).toEqual(['1', '2', '3', '4', '5'])
    expect(asked).toEqual([undefined, '2', '4'])
  })

  test('leaving the loop closes the connection', async () => {
    const gone = Promise.withResolvers<void>()
    const listener = mount({
      streamEvents: async ({ signal }) => {
        signal.addEventListener('abort', () => gone.resolve())
        return helloAndWait(signal)
      },
    })
    const { client } = await connect(listener)
    for await (const _ of client.streamEvents()) break
    await gone.promise
  })

  test('a signal ends events also after a long silence', async () => {
    const { client } = await connect(mount({ streamEvents: async ({ signal }) => helloAndWait(signal) }))
    const stop = new AbortController()
    const hello = Promise.withResolvers<void>()
    const reading = (async () => {
      for await (const _ of client.streamEvents({ signal: stop.signal })) hello.resolve()
    })()
    await hello.promise
    // The platform loses the signal of a garbage-collected request.
    for (let round = 0; round < 10; round++) await collectGarbage()
    stop.abort(new Error('heard enough'))
    await expect(reading).rejects.toThrow('heard enough')
  })

  test('an event stream without data is reconnected', async () => {
    const silences: (() => void)[] = []
    const clock: Clock = {
      now: Date.now,
      after(ms, call) {
        if (ms < 60_000) return systemClock.after(0, call)
        silences.push(call)
        return () => {}
      },
    }
    const { client } = await connect(mount({ streamEvents: async ({ signal }) => helloAndWait(signal) }), { clock })
    let hellos = 0
    for await (const { data } of client.streamEvents()) {
      expect(data.type).toBe('hello')
      if (++hellos === 3) break
      silences.at(-1)?.()
    }
    expect(hellos).toBe(3)
  })

  test('lines resume after a lost connection, each once', async () => {
    const skips: number[] = []
    const ids: string[] = []
    const news = new EventEmitter()
    const heard = async (count: number): Promise<void> => {
      while (ids.length < count) await once(news, 'heard')
    }
    const listener = mount({
      streamTaskResults: async ({ query }) => {
        skips.push(query.skip)
        return results(query.skip, query.skip < 4 ? 2 : 9, heard)
      },
    })
    const { client, clock } = await connect(listener)
    for await (const { session_id } of client.streamTaskResults({ params: { task_id: 't' } })) {
      ids.push(session_id)
      news.emit('heard')
    }
    expect(ids).toEqual(['s0', 's1', 's2', 's3', 's4', 's5'])
    expect(skips).toEqual([0, 2, 4])
    expect(clock.waits).toHaveLength(2)
  })

  test('a stream that the server cuts fails after all tries', async () => {
    const baseUrl = await listen(mount({ streamTaskResults: async () => results(0, 1, async () => {}) }))
    const response = await fetch(`${baseUrl}/tasks/t/results`, { headers: { 'accept-encoding': 'identity' } })
    let text = ''
    const reading = (async () => {
      for await (const chunk of response.body!) text += Buffer.from(chunk).toString()
    })()
    await expect(reading).rejects.toThrow('terminated')
    expect(text).not.toContain('the connection is cut here')
  })

  test('bytes are passed through', async () => {
    const bytes = Uint8Array.from({ length: 100_000 }, (_, i) => i % 251)
    const listener = mount({ getArtifact: async () => ({ stream: new Blob([bytes]).stream(), bytes: bytes.length }) })
    const { client } = await connect(listener)
    const stream = await client.getArtifact({ params: { session_id: 's' }, query: { path: 'logs/a b.txt' } })
    expect(new Uint8Array(await readAll(stream))).toEqual(bytes)
  })
})

/** A cut connection also loses unread bytes, so these wait until they were read. */
async function* twoEvents(after: number, heard: (id: string) => Promise<void>) {
  yield { data: { type: 'hello', ts: 1, data: {} } }
  for (const id of [after + 1, after + 2]) yield { id: String(id), data: { type: 'task.updated', ts: 1, data: {} } }
  await heard(String(after + 2))
  throw new RolloutError('store.unavailable', 'the connection is cut here')
}

async function* helloAndWait(signal: AbortSignal) {
  yield { data: { type: 'hello', ts: 1, data: {} } }
  await new Promise((resolve) => signal.addEventListener('abort', resolve))
}

async function* results(skip: number, length: number, heard: (count: number) => Promise<void>) {
  for (let i = skip; i < Math.min(skip + length, 6); i++) {
    const trajectory = { status: 'COMPLETED' as const, metadata: {}, traces: [] }
    yield { session_id: `s${i}`, task_id: 't', status: 'COMPLETED' as const, trajectory, timing: {} }
  }
  if (skip + length >= 6) return
  await heard(skip + length)
  throw new RolloutError('store.unavailable', 'the connection is cut here')
}

describe('uploadFile()', () => {
  const file = Uint8Array.from({ length: 1000 }, (_, i) => (i * 7) % 256)
  const digest = `sha256:${createHash('sha256').update(file).digest('hex')}`
  const source = {
    nodeId: 'n',
    sessionId: 's',
    attempt: 1,
    bytes: file.length,
    digest,
    partBytes: 300,
    read: async (offset: number, length: number) => file.slice(offset, offset + length),
  }

  /** Stores parts. At the part with that number it loses its response, or the earlier bytes. */
  function createStore(trouble: { loseAnswer?: number; forget?: number } = {}) {
    let stored = new Uint8Array()
    let parts = 0
    const toUpload = () => ({
      upload_id: 'u',
      offset: stored.length,
      bytes: file.length,
      digest,
      is_complete: stored.length === file.length,
    })
    const listener = mount({
      beginUpload: async () => toUpload(),
      getUpload: async () => toUpload(),
      putPart: async ({ query, body }) => {
        parts += 1
        const part = await readAll(body)
        if (parts === trouble.forget) stored = stored.slice(0, 100)
        if (query.offset !== stored.length) throw new RolloutError('request.conflict', 'It does not begin there.')
        stored = new Uint8Array([...stored, ...part])
        if (parts === trouble.loseAnswer) throw new RolloutError('server.failed', 'The answer was lost.')
        return toUpload()
      },
    })
    return {
      listener,
      stored: () => stored,
      parts: () => parts,
      begin: (bytes: Uint8Array) => (stored = new Uint8Array(bytes)),
    }
  }

  test('sends a file in parts', async () => {
    const store = createStore()
    const { client } = await connect(store.listener)
    expect(await uploadFile(client, source)).toMatchObject({ upload_id: 'u', is_complete: true })
    expect([store.stored(), store.parts()]).toEqual([file, 4])
  })

  test('resumes at the offset of an earlier try', async () => {
    const store = createStore()
    store.begin(file.subarray(0, 650))
    const { client } = await connect(store.listener)
    await uploadFile(client, source)
    expect([store.stored(), store.parts()]).toEqual([file, 2])
  })

  test.each([{ loseAnswer: 2 }, { forget: 3 }])('finds its offset again after %o', async (trouble) => {
    const store = createStore(trouble)
    const { client } = await connect(store.listener)
    await uploadFile(client, source)
    expect(store.stored()).toEqual(file)
  })

  test('fails on a server that makes no progress', async () => {
    const upload = { upload_id: 'u', offset: 0, bytes: file.length, digest, is_complete: false }
    const same = async () => upload
    const { client } = await connect(mount({ beginUpload: same, getUpload: same, putPart: same }))
    await expect(uploadFile(client, source)).rejects.toMatchObject({ code: 'request.conflict' })
  })
})
