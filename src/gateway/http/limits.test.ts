import { hash } from 'node:crypto'
import { mkdtemp, rm, stat } from 'node:fs/promises'
import { request } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { gzipSync } from 'node:zlib'
import pino from 'pino'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { randomIds } from '../../lib/random-ids.ts'
import { RolloutError } from '../../model/failure.ts'
import type { StreamEvent } from '../../model/stream-event.ts'
import { createCallLogReader } from '../../store/call-log/reader.ts'
import { createCallLogStore } from '../../store/call-log/store.ts'
import { Gateway, type GatewayOptions, type SessionAccess } from '../gateway.ts'
import type { SendOptions, Upstream, UpstreamReply } from '../upstreams/upstream.ts'

const ANSWER: readonly StreamEvent[] = [
  { type: 'answer-start', id: 'x', model: 'm', created: 1, promptTokenIds: Int32Array.of(1, 2) },
  {
    type: 'choice-delta',
    choice: 0,
    text: 'fine',
    ids: Int32Array.of(3),
    logprobs: Float32Array.of(0),
    finishReason: 'stop',
  },
  { type: 'answer-end' },
]

let dir: string
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), 'polar-limits-'))
})
afterAll(() => rm(dir, { recursive: true, force: true }))

/** An engine that each test configures. */
function engine(send: (options: SendOptions) => Promise<readonly StreamEvent[]>): Upstream {
  const missing = (): never => {
    throw new Error('not part of this test')
  }
  return {
    kind: 'test',
    url: 'http://engine.invalid',
    capabilities: {} as Upstream['capabilities'],
    async send(_request, options): Promise<UpstreamReply> {
      const events = await send(options)
      return {
        forced: {},
        dropped: [],
        events: (async function* () {
          yield events
        })(),
      }
    },
    tokenise: missing,
    countTokens: missing,
    listModels: missing,
    contextTokens: missing,
    probe: missing,
    async [Symbol.asyncDispose]() {},
  }
}

function start(upstream: Upstream, options: Partial<GatewayOptions> = {}): Promise<Gateway> {
  const store = createCallLogStore({ dir })
  const logger = pino({ level: 'silent' })
  const deps = { ids: randomIds(Date.now), now: Date.now, logger, continuation: 'off' as const }
  return Gateway.start({ upstream, store, ...deps, ...options })
}

interface Answer {
  status: number
  retryAfter: string | undefined
  body: unknown
}

function post(
  { baseUrl, key }: SessionAccess,
  body: string | Buffer,
  { path = '/v1/chat/completions', headers = {} }: { path?: string; headers?: Record<string, string> } = {},
): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const call = request(baseUrl + path, {
      method: 'POST',
      headers: { 'x-api-key': key, 'x-goog-api-key': key, ...headers },
    })
    call.on('error', reject).on('response', (response) => {
      let text = ''
      response.setEncoding('utf8').on('data', (piece: string) => (text += piece))
      response.on('end', () => {
        const retryAfter = response.headers['retry-after']
        resolve({ status: response.statusCode ?? 0, retryAfter, body: JSON.parse(text) })
      })
    })
    call.end(body)
  })
}

function chatOf(content: string): string {
  return JSON.stringify({ model: 'm', messages: [{ role: 'user', content }] })
}

/** Texts without common parts, so that a log cannot store one as a reference to another. */
function noise(length: number, seed: string): string {
  let text = ''
  for (let block = 0; text.length < length; block++) text += hash('sha512', `${seed} ${block}`)
  return text.slice(0, length)
}

describe('requests that the engine rejects', () => {
  const refusing = engine(() => Promise.reject(new RolloutError('upstream.refused', 'No such thing.')))

  test('long requests are stored as head, size and hash; short requests are stored whole', async () => {
    await using gateway = await start(refusing)
    const session = await gateway.openSession()
    const bodies = Array.from({ length: 8 }, (_, index) => chatOf(noise(1_000_000, `refused ${index}`)))
    const short = chatOf('short')
    for (const body of [...bodies, short]) expect(await post(session, body)).toMatchObject({ status: 400 })
    await gateway.closeSession(session.id)
    const { turns, complete } = await createCallLogReader({ dir }).load(session.id)
    expect(complete).toBe(true)
    expect(turns.map(({ failure }) => failure?.code)).toEqual(Array(9).fill('upstream.refused'))
    for (const [index, body] of bodies.entries()) {
      expect(JSON.parse(turns[index]!.request)).toEqual({
        shortened: { bytes: body.length, sha256: hash('sha256', body), head: body.slice(0, 4096) },
      })
    }
    expect(turns[8]!.request).toBe(short)
    expect((await stat(join(dir, session.id, 'calls.plog'))).size).toBeLessThan(100_000)
  })

  test('long requests that the engine accepts are stored whole', async () => {
    await using gateway = await start(engine(async () => ANSWER))
    const session = await gateway.openSession()
    const body = chatOf(noise(1_000_000, 'accepted'))
    expect(await post(session, body)).toMatchObject({ status: 200 })
    await gateway.closeSession(session.id)
    const { turns } = await createCallLogReader({ dir }).load(session.id)
    expect(turns).toMatchObject([{ request: body, response: { choices: [{ finishReason: 'stop' }] } }])
  })
})

describe('a session whose log is full', () => {
  test('further calls are rejected, one failed turn records that, and other sessions continue', async () => {
    await using gateway = await start(
      engine(async () => ANSWER),
      { sessionLogMb: 1 },
    )
    const [full, other] = [await gateway.openSession(), await gateway.openSession()]
    for (const seed of ['a', 'b', 'c', 'd']) {
      expect(await post(full, chatOf(noise(300_000, seed)))).toMatchObject({ status: 200 })
    }
    for (let again = 0; again < 3; again++) {
      expect(await post(full, chatOf('short'))).toMatchObject({
        status: 403,
        body: { error: { code: 'request.over-storage', message: expect.stringContaining('1 MB of model calls') } },
      })
    }
    expect(await post(other, chatOf('short'))).toMatchObject({ status: 200 })
    expect(await gateway.closeSession(full.id)).toBeUndefined()
    const { turns, complete } = await createCallLogReader({ dir }).load(full.id)
    expect(turns.map(({ failure }) => failure?.code)).toEqual([...Array(4), 'request.over-storage'])
    expect(complete).toBe(true)
  })
})

const apis = [
  ['/v1/chat/completions', (content: string) => chatOf(content), { type: 'rate_limit_error' }],
  ['/v1/responses', (input: string) => JSON.stringify({ model: 'm', input }), { type: 'rate_limit_error' }],
  [
    '/v1/messages',
    (content: string) => JSON.stringify({ model: 'm', max_tokens: 9, messages: [{ role: 'user', content }] }),
    { type: 'rate_limit_error' },
  ],
  [
    '/v1beta/models/m:generateContent',
    (text: string) => JSON.stringify({ contents: [{ role: 'user', parts: [{ text }] }] }),
    { status: 'RESOURCE_EXHAUSTED', code: 429 },
  ],
] as const

describe('calls in flight', () => {
  test.each(apis)('over the limit of a session get 429 with retry-after: %s', async (path, bodyOf, error) => {
    const release = Promise.withResolvers<readonly StreamEvent[]>()
    const both = Promise.withResolvers<void>()
    let entered = 0
    const stalled = engine(() => (++entered === 2 && both.resolve(), release.promise))
    await using gateway = await start(stalled, { sessionCalls: 2 })
    const [busy, other] = [await gateway.openSession(), await gateway.openSession()]
    const first = [post(busy, bodyOf('one'), { path }), post(busy, bodyOf('two'), { path })]
    await both.promise
    expect(await post(busy, bodyOf('three'), { path })).toMatchObject({ status: 429, retryAfter: '5', body: { error } })
    const neighbour = post(other, bodyOf('one'), { path })
    release.resolve(ANSWER)
    for (const answer of await Promise.all([...first, neighbour])) expect(answer.status).toBe(200)
    expect(await post(busy, bodyOf('three'), { path })).toMatchObject({ status: 200 })
    await gateway.closeSession(busy.id)
    const { turns } = await createCallLogReader({ dir }).load(busy.id)
    expect(turns.map(({ failure }) => failure)).toEqual([undefined, undefined, undefined])
  })
})

describe('request bodies in flight', () => {
  test.each(apis)('over the limit of a session get 429 with retry-after: %s', async (path, bodyOf, error) => {
    const release = Promise.withResolvers<readonly StreamEvent[]>()
    const entered = Promise.withResolvers<void>()
    const stalled = engine(() => (entered.resolve(), release.promise))
    await using gateway = await start(stalled, { budget: { sessionBytes: 1_000_000, waitMs: 1 } })
    const [busy, other] = [await gateway.openSession(), await gateway.openSession()]
    const first = post(busy, bodyOf('x'.repeat(700_000)), { path })
    await entered.promise
    const refused = await post(busy, bodyOf('x'.repeat(700_000)), { path })
    expect(refused).toMatchObject({ status: 429, retryAfter: '5', body: { error } })
    const small = [post(busy, bodyOf('hello'), { path }), post(other, bodyOf('x'.repeat(700_000)), { path })]
    release.resolve(ANSWER)
    for (const answer of await Promise.all([first, ...small])) expect(answer.status).toBe(200)
    // All bodies are released.
    expect(await post(busy, bodyOf('x'.repeat(900_000)), { path })).toMatchObject({ status: 200 })
  })

  test('bodies without content-length and compressed bodies count too', async () => {
    const release = Promise.withResolvers<readonly StreamEvent[]>()
    const entered = Promise.withResolvers<void>()
    const stalled = engine(() => (entered.resolve(), release.promise))
    await using gateway = await start(stalled, { budget: { sessionBytes: 1_000_000, waitMs: 1 } })
    const session = await gateway.openSession()
    const chunked = { headers: { 'transfer-encoding': 'chunked' } }
    const first = post(session, chatOf('x'.repeat(700_000)), chunked)
    await entered.promise
    expect(await post(session, chatOf('y'.repeat(700_000)), chunked)).toMatchObject({ status: 429 })
    const bomb = gzipSync(chatOf('z'.repeat(700_000)))
    expect(await post(session, bomb, { headers: { 'content-encoding': 'gzip' } })).toMatchObject({ status: 429 })
    release.resolve(ANSWER)
    expect(await first).toMatchObject({ status: 200 })
  })
})
