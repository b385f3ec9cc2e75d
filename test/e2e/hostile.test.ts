import { once, setMaxListeners } from 'node:events'
import { request } from 'node:http'
import { connect } from 'node:net'
import { gzipSync } from 'node:zlib'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { Stack } from '../support/stack.ts'

let stack: Stack

beforeAll(async () => {
  stack = await Stack.start({ script: 'default: { text: fine }' })
})

afterAll(async () => {
  const session = await stack.recorded()
  await stack[Symbol.asyncDispose]()
  // Only the valid call of the last test is recorded.
  expect(session.turns.map((turn) => turn.response?.choices[0]?.finishReason)).toEqual(['stop'])
  expect(session.complete).toBe(true)
})

interface Reply {
  status: number
  body: { error?: { message?: unknown; type?: unknown; param?: unknown; code?: unknown } }
}

async function send(options: {
  path?: string
  method?: string
  key?: string | null
  headers?: Record<string, string>
  body?: string | Buffer | AsyncIterable<Buffer>
}): Promise<Reply> {
  const { hostname, port } = new URL(stack.gateway.url)
  const path = options.path ?? `/s/${stack.session.id}/v1/chat/completions`
  const key = options.key === undefined ? stack.session.key : options.key
  return new Promise((resolve, reject) => {
    const call = request({
      hostname,
      port,
      path,
      method: options.method ?? 'POST',
      headers: {
        'content-type': 'application/json',
        ...(key === null ? {} : { authorization: `Bearer ${key}` }),
        ...options.headers,
      },
    })
    let answered = false
    call.on('response', (response) => {
      answered = true
      const pieces: Buffer[] = []
      response.on('data', (piece: Buffer) => pieces.push(piece))
      response.on('end', () =>
        resolve({ status: response.statusCode ?? 0, body: JSON.parse(Buffer.concat(pieces).toString()) }),
      )
    })
    // The gateway closes the connection of a rejected upload after its response.
    call.on('error', (error) => answered || reject(error))
    void write(call, options.body).catch(() => {})
  })
}

async function write(
  call: ReturnType<typeof request>,
  body: string | Buffer | AsyncIterable<Buffer> | undefined,
): Promise<void> {
  if (body === undefined || typeof body === 'string' || Buffer.isBuffer(body)) {
    call.end(body)
    return
  }
  setMaxListeners(0, call)
  for await (const piece of body) {
    if (call.destroyed) return
    if (!call.write(piece)) await Promise.race([once(call, 'drain'), once(call, 'close')])
  }
  call.end()
}

function expectRejection(reply: Reply, status: number): void {
  expect(reply.status).toBe(status)
  expect(reply.body.error).toMatchObject({ message: expect.any(String), type: expect.any(String) })
  expect(reply.body.error).toHaveProperty('param')
  expect(reply.body.error).toHaveProperty('code')
}

const good = { model: 'tiny', messages: [{ role: 'user', content: 'hi' }] }

describe('invalid requests get a 4xx error in the format of OpenAI', () => {
  test.each<[string, string | Buffer]>([
    ['an empty body', ''],
    ['not JSON', 'hello'],
    ['truncated JSON', '{"model": "tiny", "messages": ['],
    ['not UTF-8', Buffer.from([0x7b, 0xff, 0xfe, 0x7d])],
    ['null', 'null'],
    ['a list', '[]'],
    ['a number', '1e999'],
    ['no messages', '{"model":"tiny"}'],
    ['empty messages', '{"model":"tiny","messages":[]}'],
    ['messages of a wrong type', '{"model":"tiny","messages":{"role":"user"}}'],
    ['a message that is null', '{"model":"tiny","messages":[null]}'],
    ['an unknown role', '{"model":"tiny","messages":[{"role":"wizard","content":"x"}]}'],
    ['content of a wrong type', '{"model":"tiny","messages":[{"role":"user","content":7}]}'],
    ['a model of a wrong type', '{"model":7,"messages":[{"role":"user","content":"x"}]}'],
    ['stream of a wrong type', JSON.stringify({ ...good, stream: 'yes' })],
    ['temperature of a wrong type', JSON.stringify({ ...good, temperature: [] })],
    ['n out of range', JSON.stringify({ ...good, n: 1e9 })],
    ['__proto__ as a key', '{"__proto__":{"model":"tiny"},"messages":7}'],
    ['10,000 nested arrays', `{"model":"tiny","messages":${'['.repeat(10_000)}${']'.repeat(10_000)}}`],
    ['10,000 nested objects', `${'{"a":'.repeat(10_000)}1${'}'.repeat(10_000)}`],
    [
      'deep nesting in a tool',
      JSON.stringify({ ...good, tools: 0 }).replace('0', `[${'{"x":'.repeat(10_000)}1${'}'.repeat(10_000)}]`),
    ],
  ])('%s', async (_, body) => {
    expectRejection(await send({ body }), 400)
  })

  test('200 MB with a content-length', async () => {
    const headers = { 'content-length': String(200 * 1024 * 1024) }
    expectRejection(await send({ headers, body: zeros(200) }), 413)
  })

  test('200 MB without a content-length', async () => {
    expectRejection(await send({ headers: { 'transfer-encoding': 'chunked' }, body: zeros(200) }), 413)
  })

  test('200 MB compressed to 200 KB', async () => {
    const body = gzipSync(Buffer.alloc(200 * 1024 * 1024, 0x20))
    expectRejection(await send({ headers: { 'content-encoding': 'gzip' }, body }), 413)
  })

  test('broken and unknown compression', async () => {
    expectRejection(await send({ headers: { 'content-encoding': 'gzip' }, body: 'not gzip' }), 400)
    expectRejection(await send({ headers: { 'content-encoding': 'lzma' }, body: 'x' }), 415)
    expectRejection(await send({ headers: { 'content-encoding': 'constructor' }, body: 'x' }), 415)
  })

  test.each(['/', '/v2/chat/completions', '/s/x', '/s/x/v1/nothing', '/%00', '//', '/s/../../etc/passwd'])(
    'unknown path %s',
    async (path) => {
      expectRejection(await send({ path, body: JSON.stringify(good) }), 404)
    },
  )

  test('a wrong method', async () => {
    expectRejection(await send({ method: 'PUT', body: JSON.stringify(good) }), 405)
  })

  test('no key, a wrong key, an empty key and a long key', async () => {
    const body = JSON.stringify(good)
    for (const key of [null, 'sk-polar-wrong', '', 'x'.repeat(8000)]) expectRejection(await send({ key, body }), 401)
  })

  test('another session’s key, and a session that does not exist', async () => {
    const other = await stack.gateway.openSession()
    const body = JSON.stringify(good)
    expectRejection(await send({ key: other.key, body }), 401)
    expectRejection(await send({ path: `/s/${other.id}/v1/chat/completions`, body }), 401)
    expectRejection(await send({ path: '/s/nobody/v1/chat/completions', body }), 401)
    await stack.gateway.closeSession(other.id)
    expectRejection(await send({ path: `/s/${other.id}/v1/chat/completions`, key: other.key, body }), 401)
  })

  test('bytes that are not HTTP', async () => {
    const answer = await new Promise<string>((resolve, reject) => {
      const socket = connect(Number(new URL(stack.gateway.url).port), '127.0.0.1', () =>
        socket.write('\x16\x03\x01 nonsense\r\n\r\n'),
      )
      let text = ''
      socket.on('data', (piece) => (text += piece.toString()))
      socket.on('close', () => resolve(text))
      socket.on('error', reject)
    })
    expect(answer).toMatch(/^HTTP\/1\.1 400 /)
  })

  test('the gateway still serves valid requests', async () => {
    const answer = await stack
      .client()
      .chat.completions.create({ ...good, messages: [{ role: 'user', content: 'hi' }] })
    expect(answer.choices[0]?.message.content).toBe('fine')
  })
})

async function* zeros(megabytes: number): AsyncGenerator<Buffer> {
  const piece = Buffer.alloc(1024 * 1024, 0x20)
  for (let i = 0; i < megabytes; i++) yield piece
}
