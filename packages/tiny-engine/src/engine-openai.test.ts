import OpenAI, {
  APIUserAbortError,
  AuthenticationError,
  BadRequestError,
  InternalServerError,
  NotFoundError,
  RateLimitError,
} from 'openai'
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest'
import { type Engine, startEngine } from './engine.ts'

/** Compatibility with OpenAI's own client. */

const SCRIPT = `
scenarios:
  plain: [{text: "Grüße, 世界 😀!"}]
  calls:
    - reasoning: thinking
      text: Looking.
      tool_calls: [{name: bash, arguments: {command: ls}}, {name: read, arguments: {path: a}}]
    - text: Finished.
  endless: [{tokens: 5000, per_token_ms: 20}]
  busy: [{text: ok, fault: {kind: status, status: 429, retry_after_seconds: 0, times: 1}}]
  down: [{text: ok, fault: {kind: status, status: 503}}]
default: {text: default}
`

let engine: Engine
let client: OpenAI
beforeAll(async () => {
  engine = await startEngine({ script: SCRIPT, apiKey: 'key' })
  client = new OpenAI({ baseURL: `${engine.url}/v1`, apiKey: 'key', maxRetries: 0 })
})
afterAll(() => engine.close())

const chatBody = (scenario: string) => ({
  model: 'tiny',
  messages: [{ role: 'user' as const, content: `SCRIPT:${scenario}` }],
})
const tools = ['bash', 'read'].map((name) => ({
  type: 'function' as const,
  function: { name, parameters: { type: 'object', properties: {} } },
}))

describe('the openai client', () => {
  test('parses a whole answer', async () => {
    const answer = await client.chat.completions.create(chatBody('plain'))
    expect(answer.choices[0]?.message.content).toBe('Grüße, 世界 😀!')
    expect(answer.usage?.total_tokens).toBe((answer.usage?.prompt_tokens ?? 0) + (answer.usage?.completion_tokens ?? 0))
  })

  test('parses a stream with usage last', async () => {
    let text = ''
    let usage: number | undefined
    for await (const chunk of await client.chat.completions.create({
      ...chatBody('plain'),
      stream: true,
      stream_options: { include_usage: true },
    })) {
      text += chunk.choices[0]?.delta.content ?? ''
      usage ??= chunk.usage?.completion_tokens
    }
    expect(text).toBe('Grüße, 世界 😀!')
    expect(usage).toBeGreaterThan(5)
  })

  test('joins streamed tool calls, and completes a tool loop', async () => {
    const stream = client.chat.completions.stream({ ...chatBody('calls'), tools })
    const message = (await stream.finalChatCompletion()).choices[0]
    expect(message?.finish_reason).toBe('tool_calls')
    expect(message?.message.content).toBe('Looking.')
    expect(message?.message.tool_calls?.map((call) => call.type === 'function' && call.function)).toMatchObject([
      { name: 'bash', arguments: '{"command": "ls"}' },
      { name: 'read', arguments: '{"path": "a"}' },
    ])
    const { tool_calls: calls = [] } = message?.message ?? {}
    const answer = await client.chat.completions.create({
      model: 'tiny',
      tools,
      messages: [
        ...chatBody('calls').messages,
        { role: 'assistant', content: 'Looking.', tool_calls: calls },
        ...calls.map((call) => ({ role: 'tool' as const, tool_call_id: call.id, content: 'a.txt' })),
      ],
    })
    expect(answer.choices[0]?.message.content).toBe('Finished.')
    expect(answer.choices[0]?.finish_reason).toBe('stop')
  })

  test('parses two choices and log probabilities', async () => {
    const answer = await client.chat.completions.create({ ...chatBody('plain'), n: 2, logprobs: true, top_logprobs: 2 })
    expect(answer.choices.map(({ index }) => index)).toEqual([0, 1])
    for (const choice of answer.choices) {
      const content = choice.logprobs?.content ?? []
      expect(content.map(({ token }) => token).join('')).toBe('Grüße, 世界 😀!<|im_end|>')
      for (const { logprob, top_logprobs: top } of content) {
        expect(logprob).toBeLessThanOrEqual(0)
        expect(top).toHaveLength(2)
      }
    }
  })

  test('parses completions and models', async () => {
    expect((await client.completions.create({ model: 'tiny', prompt: 'x', max_tokens: 20 })).choices[0]?.text).toBe(
      'default',
    )
    expect((await client.models.list()).data.map(({ id }) => id)).toEqual(['tiny'])
    expect((await client.models.retrieve('tiny')).id).toBe('tiny')
  })

  test('throws errors of the right class', async () => {
    const create = (body: object) => client.chat.completions.create({ ...chatBody('plain'), ...body })
    await expect(create({ temperature: 9 })).rejects.toThrow(BadRequestError)
    await expect(create({ temperature: 9 })).rejects.toMatchObject({
      status: 400,
      param: 'temperature',
      type: 'BadRequestError',
    })
    await expect(create({ model: 'other' })).rejects.toThrow(NotFoundError)
    await expect(create(chatBody('down'))).rejects.toThrow(InternalServerError)
    await expect(create(chatBody('busy'))).rejects.toThrow(RateLimitError)
    const stranger = new OpenAI({ baseURL: `${engine.url}/v1`, apiKey: 'wrong', maxRetries: 0 })
    await expect(stranger.models.list()).rejects.toThrow(AuthenticationError)
  })

  test('retries retryable errors', async () => {
    const patient = new OpenAI({ baseURL: `${engine.url}/v1`, apiKey: 'key', maxRetries: 1 })
    expect((await patient.chat.completions.create(chatBody('busy#again'))).choices[0]?.message.content).toBe('ok')
  })

  test('closing a stream frees the engine', async () => {
    const controller = new AbortController()
    const stream = await client.chat.completions.create(
      { ...chatBody('endless'), stream: true },
      { signal: controller.signal },
    )
    const read = async () => {
      for await (const chunk of stream) if (chunk.choices[0]?.delta.content) break
    }
    await read()
    await vi.waitFor(() => expect(engine.runningCount).toBe(0), { timeout: 30_000, interval: 5 })
    const waiting = client.chat.completions.create(chatBody('endless'), { signal: controller.signal })
    await vi.waitFor(() => expect(engine.runningCount).toBe(1), { timeout: 30_000, interval: 2 })
    controller.abort()
    await expect(waiting).rejects.toThrow(APIUserAbortError)
    await vi.waitFor(() => expect(engine.runningCount).toBe(0), { timeout: 30_000, interval: 5 })
  })
})
