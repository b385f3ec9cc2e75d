import fc from 'fast-check'
import OpenAI from 'openai'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { embeddedModelFolder } from '../../packages/tiny-engine/src/model-package.ts'
import { loadTokenizer, type Tokenizer } from '../../packages/tiny-engine/src/tokenizer.ts'
import { textOf } from '../../src/model/message.ts'
import type { Turn } from '../../src/model/turn.ts'
import { startRechunkProxy } from '../support/rechunk-proxy.ts'
import { Stack, type EngineCall } from '../support/stack.ts'

let tokenizer: Tokenizer

beforeAll(async () => {
  tokenizer = await loadTokenizer(embeddedModelFolder())
})

/** Asserts that the recorded ids and log probabilities equal the engine's own log. */
function expectSameAsEngine(turns: readonly Turn[], calls: readonly EngineCall[]): void {
  const byId = new Map(calls.map((call) => [call.request_id, call]))
  expect(turns.length).toBe(calls.length)
  for (const { response } of turns) {
    const call = byId.get(response?.id ?? '')
    expect(response?.grade, response?.gradeReasons.join()).toBe('exact')
    expect(Array.from(response?.promptIds ?? [])).toEqual(call?.prompt_token_ids)
    expect(response?.usage?.promptTokens).toBe(call?.prompt_token_ids.length)
    const choices = (response?.choices ?? []).map((choice) => ({
      index: choice.index,
      token_ids: Array.from(choice.ids),
      logprobs: Array.from(choice.logprobs),
    }))
    expect(choices).toEqual(
      call?.choices.map(({ index, token_ids, logprobs }) => ({
        index,
        token_ids,
        logprobs: logprobs.map(Math.fround),
      })),
    )
    expect(response?.usage?.completionTokens).toBe(choices.reduce((sum, choice) => sum + choice.token_ids.length, 0))
  }
}

async function readStream(stream: AsyncIterable<OpenAI.ChatCompletionChunk>): Promise<{ id: string; texts: string[] }> {
  const texts: string[] = []
  let id = ''
  for await (const chunk of stream) {
    id = chunk.id
    for (const choice of chunk.choices) texts[choice.index] = (texts[choice.index] ?? '') + (choice.delta.content ?? '')
  }
  return { id, texts }
}

describe('the tiny model, through the gateway, read by the OpenAI SDK', () => {
  let stack: Stack
  beforeAll(async () => {
    stack = await Stack.start()
  })
  afterAll(() => stack[Symbol.asyncDispose]())

  test('prompt ids, sampled ids and log probabilities equal the engine’s own log, and decode to the text received', async () => {
    const received = new Map<string, string[]>()
    const complete = async (content: string, options: Partial<OpenAI.ChatCompletionCreateParams>): Promise<void> => {
      const request = { model: 'any-name', messages: [{ role: 'user' as const, content }], max_tokens: 40, ...options }
      if (options.stream === true) {
        const stream = await stack.client().chat.completions.create({ ...request, stream: true })
        const { id, texts } = await readStream(stream)
        received.set(id, texts)
      } else {
        const answer = await stack.client().chat.completions.create({ ...request, stream: false })
        expect(answer.model).toBe('any-name')
        received.set(
          answer.id,
          answer.choices.map((choice) => choice.message.content ?? ''),
        )
      }
    }
    await complete('What is the capital of France?', { seed: 1, stream: true })
    await complete('What is the capital of France?', { seed: 1 })
    await complete('请介绍一下你自己。', { seed: 2, stream: true, temperature: 0.7 })
    await complete('Tell a story 🐙', { seed: 3, n: 2 })
    await complete('Tell a story 🐙', { seed: 3, n: 2, stream: true })
    await complete('你好', { temperature: 0, stream: true, max_tokens: 3 })
    await Promise.all(
      Array.from({ length: 6 }, (_, i) => complete(`Question ${i}: 你是谁？`, { seed: i, stream: i % 2 === 0 })),
    )

    const session = await stack.recorded()
    expect(session).toMatchObject({ complete: true, incompleteReasons: [] })
    expectSameAsEngine(session.turns, await stack.engineCalls())
    for (const turn of session.turns) {
      expect(turn.delivery).toBe('delivered')
      const texts = turn.response?.choices.map((choice) => tokenizer.decode(choice.ids, { skipSpecialTokens: true }))
      expect(received.get(turn.response?.id ?? '')).toEqual(texts)
      expect(turn.response?.choices.map((choice) => textOf(choice.message))).toEqual(texts)
    }
  })
})

const SCRIPT = `
scenarios:
  tools:
    - reasoning: "I think, 😀 therefore"
      text: "Ünïcödé first."
      tool_calls:
        - { name: bash, arguments: { command: "echo \\"hi\\" | wc", n: 1.5 } }
        - { name: read, arguments: '{"path":  "a b.txt"}' }
  text:
    - text: "第一行\\n第二行 🐙 and a tab\\t."
`

const tools: OpenAI.ChatCompletionTool[] = ['bash', 'read'].map((name) => ({
  type: 'function',
  function: { name, parameters: { type: 'object', properties: {} } },
}))

function body(scenario: string): Omit<OpenAI.ChatCompletionCreateParamsStreaming, 'stream'> {
  return {
    model: 'tiny',
    messages: [{ role: 'user', content: `SCRIPT:${scenario}` }],
    tools,
    stream_options: { include_usage: true },
  }
}

describe('scripted turns, read by the OpenAI SDK', () => {
  test('streamed and whole answers contain the same message, with the exact argument text', async () => {
    await using stack = await Stack.start({ script: SCRIPT })
    const client = stack.client()
    const streamed = await client.chat.completions.stream(body('tools')).finalChatCompletion()
    const { stream_options: _, ...rest } = body('tools')
    const whole = await client.chat.completions.create(rest)
    for (const answer of [streamed, whole]) {
      const [choice] = answer.choices
      expect(choice?.finish_reason).toBe('tool_calls')
      expect(choice?.message.content).toBe('Ünïcödé first.')
      expect(choice?.message.tool_calls?.map((call) => call.type === 'function' && call.function)).toMatchObject([
        { name: 'bash', arguments: '{"command": "echo \\"hi\\" | wc", "n": 1.5}' },
        { name: 'read', arguments: '{"path":  "a b.txt"}' },
      ])
      expect(JSON.stringify(answer)).not.toContain('token_ids')
      expect(choice?.logprobs ?? null).toBeNull()
    }
    const session = await stack.recorded()
    expectSameAsEngine(session.turns, await stack.engineCalls())
    expect(whole.choices[0]?.message).toHaveProperty('reasoning', 'I think, 😀 therefore')
    for (const turn of session.turns) {
      const message = turn.response?.choices[0]?.message
      expect(message).toMatchObject({ reasoning: 'I think, 😀 therefore', content: [{ text: 'Ünïcödé first.' }] })
      expect(message?.toolCalls.map((call) => call.arguments)).toEqual([
        '{"command": "echo \\"hi\\" | wc", "n": 1.5}',
        '{"path":  "a b.txt"}',
      ])
    }
  })

  test('a history that the harness reformatted reaches the engine as sampled, including invalid tool calls', async () => {
    const script = `
scenarios:
  go:
    - tool_calls: [{ name: bash, arguments: '{"n": 1.0,  "s": "\\u0041"}' }]
    - tool_calls: [{ name: bash, arguments: '{"command": "ec' }]
    - text: done
`
    await using stack = await Stack.start({ script })
    const client = stack.client()
    const messages: OpenAI.ChatCompletionMessageParam[] = [{ role: 'user', content: 'SCRIPT:go' }]
    for (let turn = 0; turn < 3; turn++) {
      const answer = await client.chat.completions.create({ model: 'tiny', messages, tools })
      const [call] = answer.choices[0]?.message.tool_calls ?? []
      if (call?.type !== 'function') break
      // Most harnesses parse the arguments and serialize them again if they are valid JSON.
      const args = turn === 0 ? JSON.stringify(JSON.parse(call.function.arguments)) : call.function.arguments
      messages.push(
        { role: 'assistant', tool_calls: [{ ...call, function: { ...call.function, arguments: args } }] },
        { role: 'tool', tool_call_id: call.id, content: 'ok' },
      )
    }
    const { turns } = await stack.recorded()
    const prompt = tokenizer.decode(turns[2]?.response?.promptIds ?? [], { skipSpecialTokens: false })
    expect(prompt).toContain('"arguments": {"n": 1.0,  "s": "\\u0041"}}')
    expect(prompt).toContain('"arguments": {"command": "ec}')
    expect(turns[2]?.response?.choices[0]?.message.content).toEqual([{ type: 'text', text: 'done' }])
  })

  test('log probabilities that the harness requested equal the captured ones', async () => {
    await using stack = await Stack.start({ script: SCRIPT })
    const { stream_options: _, ...rest } = body('text')
    const answer = await stack.client().chat.completions.create({ ...rest, logprobs: true, top_logprobs: 2 })
    const session = await stack.recorded()
    const shown = answer.choices[0]?.logprobs?.content?.map((entry) => Math.fround(entry.logprob))
    expect(shown).toEqual(Array.from(session.turns[0]?.response?.choices[0]?.logprobs ?? []))
    expect(answer.choices[0]?.logprobs?.content?.[0]?.top_logprobs).toHaveLength(2)
  })

  test('relayed events and captured tokens do not depend on how the bytes of the engine are split', async () => {
    let sizes: number[] = [65_536]
    let turn = 0
    const nextSize = (): number => sizes[turn++ % sizes.length] ?? 1
    await using proxies = new AsyncDisposableStack()
    const via = async (url: string): Promise<string> => proxies.use(await startRechunkProxy(url, nextSize)).url
    await using stack = await Stack.start({ script: SCRIPT, via })
    const client = stack.client()
    const chunksOf = async (scenario: string): Promise<unknown[]> => {
      const chunks: unknown[] = []
      const stream = await client.chat.completions.create({ ...body(scenario), stream: true })
      for await (const { id: _id, created: _created, ...chunk } of stream) chunks.push(withoutCallIds(chunk))
      return chunks
    }
    const expected = { tools: await chunksOf('tools'), text: await chunksOf('text') }
    expect(expected.tools.length).toBeGreaterThan(10)
    const randomCuts = fc.array(fc.integer({ min: 1, max: 200 }), { minLength: 1, maxLength: 20 })
    await fc.assert(
      fc.asyncProperty(randomCuts, fc.constantFrom('tools' as const, 'text' as const), async (cuts, scenario) => {
        sizes = cuts
        expect(await chunksOf(scenario)).toEqual(expected[scenario])
      }),
      { numRuns: 40 },
    )
    const session = await stack.recorded()
    expectSameAsEngine(session.turns, await stack.engineCalls())
    const answers = session.turns.map(({ response }) => Array.from(response?.choices[0]?.ids ?? []).join())
    expect(new Set(answers).size).toBe(2)
  })

  test('a disconnect of the harness aborts the call of the engine, and the sampled tokens are stored as undelivered', async () => {
    await using stack = await Stack.start({ script: 'default: { tokens: 2000, per_token_ms: 5 }' })
    const abort = new AbortController()
    const stream = await stack
      .client()
      .chat.completions.create(
        { model: 'tiny', messages: [{ role: 'user', content: 'go' }], stream: true },
        { signal: abort.signal },
      )
    let frames = 0
    try {
      for await (const _chunk of stream) if (++frames === 10) abort.abort()
    } catch {
      // The SDK throws because the test aborted the call.
    }
    const [turn] = (await stack.recorded()).turns
    expect(turn).toMatchObject({ delivery: 'undelivered', failure: { code: 'request.client-gone' } })
    expect(turn?.response?.grade).not.toBe('exact')
    const kept = turn?.response?.choices[0]?.ids.length ?? 0
    expect(kept).toBeGreaterThan(5)
    expect(kept).toBeLessThan(500)
    const [call] = await stack.engineCalls()
    expect(call?.aborted).toBe(true)
    expect(call?.choices[0]?.token_ids.slice(0, kept)).toEqual(Array.from(turn?.response?.choices[0]?.ids ?? []))
  })
})

/** Removes tool call ids, which are random in each answer. */
function withoutCallIds(chunk: unknown): unknown {
  return JSON.parse(JSON.stringify(chunk, (key, value) => (key === 'id' ? undefined : value)))
}

describe('faults of the engine', () => {
  const fault = (text: string): string => `default: { text: "some words to send here", fault: ${text} }`
  const call = { model: 'tiny', messages: [{ role: 'user' as const, content: 'x' }] }

  test.each([
    ['a 429 with Retry-After', '{ kind: status, status: 429, retry_after_seconds: 2 }', 429, 'upstream.rate-limited'],
    ['a 500', '{ kind: status, status: 500 }', 500, 'upstream.failed'],
    ['a 503', '{ kind: status, status: 503 }', 503, 'upstream.overloaded'],
    ['a reset before the first byte', '{ kind: reset }', 502, 'upstream.reset'],
    ['bytes that are not JSON', '{ kind: malformed }', 502, 'upstream.bad-stream'],
  ])(
    '%s: the caller receives an error of the OpenAI API, and the log has the failure code',
    async (_, text, status, code) => {
      await using stack = await Stack.start({ script: fault(text) })
      const error = await stack
        .client()
        .chat.completions.create(call)
        .catch((thrown: unknown) => thrown)
      expect(error).toBeInstanceOf(OpenAI.APIError)
      expect(error).toMatchObject({ status })
      if (status === 429) expect((error as InstanceType<typeof OpenAI.APIError>).headers?.get('retry-after')).toBe('2')
      const [turn] = (await stack.recorded()).turns
      expect(turn).toMatchObject({ failure: { code }, delivery: 'undelivered' })
      expect(turn?.response?.grade).not.toBe('exact')
    },
  )

  test.each([
    ['cut', '{ kind: cut, after_tokens: 3 }', 'upstream.bad-stream'],
    ['reset', '{ kind: reset, after_tokens: 3 }', 'upstream.reset'],
    ['malformed', '{ kind: malformed, after_tokens: 3 }', 'upstream.bad-stream'],
  ])('a stream that is %s midway fails for the harness too, and the partial turn is stored', async (_, text, code) => {
    const slow = `default: { text: "some words to send here", per_token_ms: 10, fault: ${text} }`
    await using stack = await Stack.start({ script: slow })
    const stream = await stack.client().chat.completions.create({ ...call, stream: true })
    await expect(readStream(stream)).rejects.toThrow()
    const [turn] = (await stack.recorded()).turns
    expect(turn).toMatchObject({ failure: { code }, delivery: 'undelivered' })
    expect(turn?.response?.choices[0]).toMatchObject({ finishReason: 'cut' })
    expect(turn?.response?.choices[0]?.ids.length).toBeGreaterThanOrEqual(1)
    expect(turn?.response?.grade).not.toBe('exact')
  })

  test.each([
    ['no ids', '{ kind: omit, fields: [token_ids] }'],
    ['no prompt ids', '{ kind: omit, fields: [prompt_token_ids] }'],
    ['no log probabilities', '{ kind: omit, fields: [logprobs] }'],
    ['no usage', '{ kind: omit, fields: [usage] }'],
    ['one id too few', '{ kind: wrong-length, field: token_ids }'],
    ['one log probability too few', '{ kind: wrong-length, field: logprobs }'],
  ])('with %s the harness receives its answer, and the turn is not exact', async (_, text) => {
    await using stack = await Stack.start({ script: fault(text) })
    const whole = await stack.client().chat.completions.create(call)
    const streamed = await readStream(await stack.client().chat.completions.create({ ...call, stream: true }))
    expect(whole.choices[0]?.message.content).toBe('some words to send here')
    expect(streamed.texts).toEqual(['some words to send here'])
    const { turns } = await stack.recorded()
    expect(turns).toHaveLength(2)
    for (const turn of turns) {
      expect(turn.response?.grade).not.toBe('exact')
      expect(turn.response?.gradeReasons.length).toBeGreaterThan(0)
    }
  })

  test('a call to an unreachable engine fails with upstream.unreachable', async () => {
    await using stack = await Stack.start({ script: 'default: { text: x }', via: async () => 'http://127.0.0.1:9' })
    const error = await stack
      .client()
      .chat.completions.create(call)
      .catch((thrown: unknown) => thrown)
    expect(error).toMatchObject({ status: 502, code: 'upstream.unreachable' })
  })

  test('max_completion_tokens beyond the context is lowered; a prompt beyond the context is an error of the request', async () => {
    await using stack = await Stack.start({ script: 'default: { text: short }' })
    const answer = await stack.client().chat.completions.create({ ...call, max_completion_tokens: 1_000_000 })
    expect(answer.choices[0]?.message.content).toBe('short')
    const long = { ...call, messages: [{ role: 'user' as const, content: 'word '.repeat(40_000) }] }
    const error = await stack
      .client()
      .chat.completions.create(long)
      .catch((thrown: unknown) => thrown)
    expect(error).toMatchObject({ status: 400, code: 'context_length_exceeded' })
    const { turns } = await stack.recorded()
    expect(turns[0]?.forced['max_tokens']).toBeGreaterThan(30_000)
    expect(turns[1]?.failure?.code).toBe('request.context-overflow')
  })
})
