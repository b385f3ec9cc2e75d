import { once } from 'node:events'
import { request, type IncomingMessage } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import { describe, expect, test } from 'vitest'
import { startRechunkProxy } from '../support/rechunk-proxy.ts'
import { Stack } from '../support/stack.ts'

/** Sends a call as raw HTTP, so that headers and frames can be timed. */
function call(
  stack: Stack,
  body: object,
  headers: Record<string, string> = {},
): { response: Promise<IncomingMessage>; cancel: () => void } {
  const { hostname, port } = new URL(stack.gateway.url)
  const message = request({
    hostname,
    port,
    method: 'POST',
    path: `/s/${stack.session.id}/v1/chat/completions`,
    headers: { authorization: `Bearer ${stack.session.key}`, 'content-type': 'application/json', ...headers },
  })
  message.on('error', () => {})
  message.end(JSON.stringify({ model: 'tiny', messages: [{ role: 'user', content: 'go' }], ...body }))
  const response = once(message, 'response').then(([first]) => first as IncomingMessage)
  return { response, cancel: () => message.destroy() }
}

async function read(response: IncomingMessage): Promise<string> {
  let text = ''
  for await (const piece of response) text += String(piece)
  return text
}

function textOf(sse: string): string {
  return sse
    .split('\n\n')
    .filter((frame) => frame.startsWith('data: {'))
    .map((frame) => JSON.parse(frame.slice('data: '.length)) as { choices: { delta: { content?: string } }[] })
    .map((chunk) => chunk.choices[0]?.delta.content ?? '')
    .join('')
}

describe('a slow engine', () => {
  test('the harness receives headers and one frame before the first token, then the complete answer', async () => {
    await using stack = await Stack.start({ script: 'default: { text: at last, first_token_ms: 6000 }' })
    const startedAt = performance.now()
    const response = await call(stack, { stream: true }).response
    const [first] = (await once(response, 'data')) as [Buffer]
    expect(performance.now() - startedAt).toBeLessThan(6000)
    expect(response.statusCode).toBe(200)
    expect(first.toString()).toContain('"delta":{}')
    expect(textOf(first.toString() + (await read(response)))).toBe('at last')
  })

  test('an immediate error of the engine keeps its HTTP status', async () => {
    const script = 'default: { text: x, fault: { kind: status, status: 429, retry_after_seconds: 3 } }'
    await using stack = await Stack.start({ script })
    const response = await call(stack, { stream: true }).response
    expect([response.statusCode, response.headers['retry-after']]).toEqual([429, '3'])
  })
})

describe('an engine that ends its response after its last event', () => {
  test('serves consecutive streams over one connection', async () => {
    await using proxies = new AsyncDisposableStack()
    let connections = 0
    // The end of the response arrives in a separate chunk, as real servers send it.
    const via = async (url: string): Promise<string> => {
      const proxy = proxies.use(
        await startRechunkProxy(
          url,
          () => 1,
          () => (connections += 1),
        ),
      )
      return proxy.url
    }
    await using stack = await Stack.start({ script: 'default: { text: a few words }', via })
    for (let i = 0; i < 8; i++) await read(await call(stack, { stream: true }).response)
    expect(connections).toBeLessThanOrEqual(2)
  })
})

describe('a harness that disconnects', () => {
  test('cancels the generation at once, before and after the first token', async () => {
    for (const script of [
      'default: { tokens: 5000, first_token_ms: 60000 }',
      'default: { tokens: 5000, per_token_ms: 20 }',
    ]) {
      await using stack = await Stack.start({ script })
      const { response, cancel } = call(stack, { stream: true })
      await Promise.race([response.then((answer) => once(answer, 'data')), sleep(300)])
      await expect.poll(() => stack.engine.runningCount, { interval: 2 }).toBe(1)
      cancel()
      // A fraction of the duration of the generation.
      await expect.poll(() => stack.engine.runningCount, { interval: 2, timeout: 20_000 }).toBe(0)
      const [turn] = (await stack.recorded()).turns
      expect(turn).toMatchObject({ delivery: 'undelivered', failure: { code: 'request.client-gone' } })
    }
  })
})

describe('a harness that retries', () => {
  const script = 'default: { text: one answer for both, per_token_ms: 30 }'
  const retry = { 'x-stainless-retry-count': '1' }

  test('joins its own call while that is running: one generation, two deliveries', async () => {
    await using stack = await Stack.start({ script })
    const first = call(stack, { stream: true })
    await once(await first.response, 'data')
    const second = await call(stack, { stream: true }, retry).response
    first.cancel()
    expect(textOf(await read(second))).toBe('one answer for both')
    const { turns } = await stack.recorded()
    expect(turns).toHaveLength(1)
    expect(turns[0]).toMatchObject({ delivery: 'delivered', response: { grade: 'exact' } })
    expect(await stack.engineCalls()).toHaveLength(1)
  })

  test('creates a new call with retryOf when the first call has ended', async () => {
    await using stack = await Stack.start({ script })
    await read(await call(stack, { stream: true }).response)
    await read(await call(stack, { stream: true }, retry).response)
    const { turns } = await stack.recorded()
    expect(turns.map((turn) => turn.retryOf)).toEqual([undefined, turns[0]?.id])
  })

  test('joins a call with the same idempotency key; equal bodies alone do not count as a retry', async () => {
    await using stack = await Stack.start({ script })
    const key = { 'idempotency-key': 'k1' }
    const answers = await Promise.all(
      [key, key, {}, {}].map(async (headers) => read(await call(stack, { stream: false }, headers).response)),
    )
    expect(answers.every((text) => text.includes('one answer for both'))).toBe(true)
    const { turns } = await stack.recorded()
    expect(turns).toHaveLength(3)
    expect(turns.every((turn) => turn.delivery === 'delivered')).toBe(true)
  })

  test('headers that identify the caller are stored, keys are not', async () => {
    await using stack = await Stack.start({ script: 'default: { text: x }' })
    await read(await call(stack, {}, { 'x-claude-code-agent-id': 'a7' }).response)
    const [turn] = (await stack.recorded()).turns
    expect(turn?.headers).toMatchObject({ 'x-claude-code-agent-id': 'a7' })
    expect(JSON.stringify(turn?.headers)).not.toContain(stack.session.key)
  })
})
