import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import fc from 'fast-check'
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest'
import { joinChoice, post, postJson, postStream, type WireAnswer } from '../../../test/support/engine-client.ts'
import { type Engine, startEngine } from './engine.ts'
import type { GenerationRecord } from './generation-log.ts'
import { runs } from '../../../test/support/runs.ts'

const SCRIPT = `
scenarios:
  agent:
    - reasoning: I should look.
      text: Let me look.
      tool_calls:
        - {name: bash, arguments: {command: "ls -la", timeout: 3}}
        - {name: read, arguments: '{"path": "a.txt'}
    - text: All done.
  words:
    - text: one two three four five
  unicode:
    - text: "héllo 世界 😀 end"
  slow:
    - {text: a b c d e f g h i j k l m n o p, per_token_ms: 20}
  never:
    - {text: x, first_token_ms: 60000}
  cut:
    - {text: this is cut, finish: length}
  load:
    - {tokens: 5000}
default: {text: Hello there}
`

const tools = [
  { type: 'function', function: { name: 'bash', description: 'Runs', parameters: { type: 'object', properties: {} } } },
  { type: 'function', function: { name: 'read' } },
]

function chatBody(scenario: string, more: Record<string, unknown> = {}): Record<string, unknown> {
  return { model: 'tiny', messages: [{ role: 'user', content: `SCRIPT:${scenario}` }], return_token_ids: true, ...more }
}

let engine: Engine
let records: GenerationRecord[] = []
let chat: string
beforeAll(async () => {
  let id = 0
  engine = await startEngine({
    scaleOut: true,
    script: SCRIPT,
    log: (record) => records.push(record),
    newId: () => (++id).toString(16).padStart(32, '0'),
  })
  chat = `${engine.url}/v1/chat/completions`
})
afterAll(() => engine.close())

describe('POST /v1/chat/completions', () => {
  test('streams like vLLM: role, deltas with ids, finish, usage, [DONE]', async () => {
    const { chunks, isDone } = await postStream(
      chat,
      chatBody('words', { stream_options: { include_usage: true }, logprobs: true }),
    )
    expect(isDone).toBe(true)
    const [first, ...rest] = chunks
    expect(first?.choices).toEqual([
      { index: 0, delta: { role: 'assistant', content: '' }, logprobs: null, finish_reason: null },
    ])
    expect(first?.prompt_token_ids?.length).toBeGreaterThan(0)
    const usage = rest.pop()
    expect(usage).toMatchObject({ choices: [], usage: { prompt_tokens: first?.prompt_token_ids?.length } })
    const last = rest.at(-1)?.choices[0]
    expect(last).toMatchObject({ delta: {}, finish_reason: 'stop', stop_reason: null, token_ids: [2] })
    for (const { choices } of rest) {
      expect(choices[0]?.token_ids).toHaveLength(1)
      expect(choices[0]?.logprobs?.content).toHaveLength(1)
    }
    expect(joinChoice(chunks).content).toBe('one two three four five')
    expect(usage?.usage?.completion_tokens).toBe(joinChoice(chunks).ids.length)
  })

  test('returns the body of a whole answer', async () => {
    const { body } = await postJson(
      chat,
      chatBody('cut', { logprobs: true, top_logprobs: 1, max_tokens: 2, request_id: 'named' }),
    )
    expect({ ...body, created: 0, prompt_token_ids: [] }).toMatchInlineSnapshot(`
      {
        "choices": [
          {
            "finish_reason": "length",
            "index": 0,
            "logprobs": {
              "content": [
                {
                  "bytes": [
                    116,
                    104,
                  ],
                  "logprob": -4.170827388763428,
                  "token": "th",
                  "top_logprobs": [
                    {
                      "bytes": [
                        116,
                        104,
                      ],
                      "logprob": -4.170827388763428,
                      "token": "th",
                    },
                  ],
                },
                {
                  "bytes": [
                    105,
                    115,
                  ],
                  "logprob": -1.156821370124817,
                  "token": "is",
                  "top_logprobs": [
                    {
                      "bytes": [
                        105,
                        115,
                      ],
                      "logprob": -1.156821370124817,
                      "token": "is",
                    },
                  ],
                },
              ],
            },
            "message": {
              "annotations": null,
              "audio": null,
              "content": "this",
              "function_call": null,
              "reasoning": null,
              "refusal": null,
              "role": "assistant",
            },
            "stop_reason": null,
            "token_ids": [
              450,
              291,
            ],
          },
        ],
        "created": 0,
        "id": "chatcmpl-named",
        "kv_transfer_params": null,
        "model": "tiny",
        "object": "chat.completion",
        "prompt_logprobs": null,
        "prompt_text": null,
        "prompt_token_ids": [],
        "service_tier": null,
        "system_fingerprint": null,
        "usage": {
          "completion_tokens": 2,
          "completion_tokens_details": {
            "reasoning_tokens": 0,
          },
          "prompt_tokens": 33,
          "total_tokens": 35,
        },
      }
    `)
  })

  test('parses reasoning and calls; arguments are the sampled text, even if it is invalid JSON', async () => {
    const whole = (await postJson(chat, chatBody('agent', { tools }))).body.choices[0]
    expect(whole?.finish_reason).toBe('tool_calls')
    expect(whole?.message).toMatchObject({
      content: 'Let me look.',
      reasoning: 'I should look.',
      tool_calls: [
        { type: 'function', function: { name: 'bash', arguments: '{"command": "ls -la", "timeout": 3}' } },
        { type: 'function', function: { name: 'read', arguments: '{"path": "a.txt' } },
      ],
    })
    expect(whole?.message?.tool_calls?.[0]?.id).toMatch(/^chatcmpl-tool-[0-9a-f]{32}$/)
    const streamed = joinChoice((await postStream(chat, chatBody('agent', { tools }))).chunks)
    expect(streamed).toMatchObject({ content: 'Let me look.', reasoning: 'I should look.', finishReason: 'tool_calls' })
    expect(streamed.ids).toEqual(whole?.token_ids)
    expect(streamed.toolCalls.map(({ name, arguments: args }) => ({ name, arguments: args }))).toEqual(
      whole?.message?.tool_calls?.map((call) => call.function),
    )
  })

  test('leaves calls in the text if the request has no tools or forbids tool calls', async () => {
    for (const more of [{}, { tools, tool_choice: 'none' }]) {
      const choice = (await postJson(chat, chatBody('agent', more))).body.choices[0]
      expect(choice?.message?.content).toContain('<tool_call>')
      expect(choice?.finish_reason).toBe('stop')
    }
  })

  test('a named tool keeps the finish reason stop; parallel_tool_calls: false returns the first call only', async () => {
    const named = { tools, tool_choice: { type: 'function', function: { name: 'bash' } } }
    expect((await postJson(chat, chatBody('agent', named))).body.choices[0]?.finish_reason).toBe('stop')
    const single = chatBody('agent', { tools, parallel_tool_calls: false })
    expect((await postJson(chat, single)).body.choices[0]?.message?.tool_calls).toHaveLength(1)
    expect(joinChoice((await postStream(chat, single)).chunks).toolCalls).toHaveLength(1)
  })

  test('without return_token_ids, empty chunks are omitted and ids are null', async () => {
    const { chunks } = await postStream(chat, chatBody('agent', { tools, return_token_ids: false }))
    expect(chunks[0]?.prompt_token_ids).toBeNull()
    for (const choice of chunks.slice(1, -1).map(({ choices }) => choices[0])) {
      expect(Object.keys(choice?.delta ?? {})).not.toHaveLength(0)
      expect(choice?.token_ids).toBeNull()
    }
    expect(joinChoice(chunks)).toMatchObject({ content: 'Let me look.', finishReason: 'tool_calls' })
  })

  test('include_reasoning: false hides reasoning, ids and log probabilities', async () => {
    const hidden = chatBody('agent', { tools, include_reasoning: false, logprobs: true })
    const choice = (await postJson(chat, hidden)).body.choices[0]
    expect(choice).toMatchObject({ logprobs: null, token_ids: null, message: { reasoning: null } })
    const streamed = joinChoice((await postStream(chat, hidden)).chunks)
    expect(streamed).toMatchObject({ reasoning: '', ids: [], logprobs: [], content: 'Let me look.' })
  })

  test('a stop string truncates the text, not the ids; ids are sent before their text', async () => {
    const body = chatBody('words', { stop: ['three'] })
    const choice = (await postJson(chat, body)).body.choices[0]
    expect(choice).toMatchObject({ message: { content: 'one two ' }, finish_reason: 'stop', stop_reason: 'three' })
    const { chunks } = await postStream(chat, body)
    expect(joinChoice(chunks)).toMatchObject({ content: 'one two ', stopReason: 'three', ids: choice?.token_ids })
    expect(chunks[1]?.choices[0]).toMatchObject({ delta: {}, finish_reason: null })
    expect(chunks[1]?.choices[0]?.token_ids).toHaveLength(1)
    const included = chatBody('words', { stop: ['three'], include_stop_str_in_output: true })
    expect((await postJson(chat, included)).body.choices[0]?.message?.content).toBe('one two three')
  })

  test('applies stop ids, max_tokens and n', async () => {
    const ids = (await postJson(chat, chatBody('words'))).body.choices[0]?.token_ids ?? []
    const stopped = (await postJson(chat, chatBody('words', { stop_token_ids: [ids[3]] }))).body.choices[0]
    expect(stopped).toMatchObject({ token_ids: ids.slice(0, 4), finish_reason: 'stop', stop_reason: ids[3] })
    const short = (await postJson(chat, chatBody('words', { max_tokens: 2, n: 3 }))).body
    expect(short.choices.map(({ index, token_ids, finish_reason }) => ({ index, token_ids, finish_reason }))).toEqual(
      [0, 1, 2].map((index) => ({ index, token_ids: ids.slice(0, 2), finish_reason: 'length' })),
    )
    expect(short.usage?.completion_tokens).toBe(6)
    const { chunks } = await postStream(chat, chatBody('words', { n: 2 }))
    expect(chunks.filter(({ prompt_token_ids: prompt }) => prompt != null)).toHaveLength(2)
    for (const index of [0, 1]) expect(joinChoice(chunks, index).ids).toEqual(ids)
  })

  test('a truncated turn has finish reason length on its last token', async () => {
    const { chunks } = await postStream(chat, chatBody('cut'))
    expect(chunks.at(-1)?.choices[0]).toMatchObject({
      finish_reason: 'length',
      delta: { content: expect.any(String) as string },
    })
    expect(chunks.at(-1)?.choices[0]?.token_ids).toHaveLength(1)
  })

  test('log probabilities have bytes, alternatives with the sampled token first, and names by id', async () => {
    const body = chatBody('unicode', { logprobs: true, top_logprobs: 3 })
    const choice = (await postJson(chat, body)).body.choices[0]
    const content = choice?.logprobs?.content ?? []
    expect(content).toHaveLength(choice?.token_ids?.length ?? 0)
    expect(content.map(({ token }) => token).join('')).toBe('héllo 世界 😀 end<|im_end|>')
    for (const entry of content) {
      expect(entry.bytes).toEqual([...Buffer.from(entry.token)])
      expect(entry.top_logprobs).toHaveLength(3)
      expect(entry.top_logprobs[0]).toEqual({ token: entry.token, logprob: entry.logprob, bytes: entry.bytes })
    }
    const named = (await postJson(chat, { ...body, return_tokens_as_token_ids: true })).body.choices[0]
    expect(named?.logprobs?.content.map(({ token }) => token)).toEqual(named?.token_ids?.map((id) => `token_id:${id}`))
  })

  test('an explicit null for top_logprobs disables log probabilities, as in vLLM', async () => {
    const body = chatBody('words', { logprobs: true, top_logprobs: null })
    expect((await postJson(chat, body)).body.choices[0]?.logprobs).toBeNull()
  })

  test('stream_interval combines several tokens in a chunk; continuous usage is in every chunk', async () => {
    const { chunks } = await postStream(
      chat,
      chatBody('words', { stream_interval: 3, stream_options: { include_usage: true, continuous_usage_stats: true } }),
    )
    const lengths = chunks.slice(1, -1).map(({ choices }) => choices[0]?.token_ids?.length)
    expect(lengths[0]).toBe(1)
    expect(lengths[1]).toBe(3)
    expect(joinChoice(chunks).content).toBe('one two three four five')
    for (const { usage } of chunks) expect(usage?.prompt_tokens).toBeGreaterThan(0)
  })

  test('token-in: the ids of the request are the prompt, and messages still select the turn', async () => {
    const body = chatBody('words', { kv_transfer_params: { prompt_token_ids: [1, 320, 275, 201] }, max_tokens: 30_000 })
    expect((await postJson(chat, body)).body.prompt_token_ids).toEqual([1, 320, 275, 201])
    const { chunks } = await postStream(chat, body)
    expect(chunks[0]?.prompt_token_ids).toEqual([1, 320, 275, 201])
    expect(joinChoice(chunks).content).toBe('one two three four five')
  })

  test('token-in reduces max_tokens to the context length, where a rendered prompt is rejected', async () => {
    const promptIds = Array.from({ length: 32_760 }, () => 320)
    const fits = chatBody('load', { kv_transfer_params: { prompt_token_ids: promptIds }, max_tokens: 100 })
    const { status, body } = await postJson(chat, fits)
    expect(status).toBe(200)
    expect(body.choices[0]).toMatchObject({ finish_reason: 'length' })
    expect(body.choices[0]?.token_ids).toHaveLength(8)
    const full = chatBody('words', { kv_transfer_params: { prompt_token_ids: [...promptIds, ...promptIds] } })
    expect((await postJson(chat, full)).body.error?.message).toBe(
      "Input length (65520) exceeds model's maximum context length (32768).",
    )
  })

  test('the request id is read from the header, then from the body', async () => {
    const named = await post(chat, chatBody('words', { request_id: 'mine' }), { headers: { 'x-request-id': 'theirs' } })
    expect(((await named.json()) as WireAnswer).id).toBe('chatcmpl-theirs')
    expect((await postJson(chat, chatBody('words', { request_id: 'mine' }))).body.id).toBe('chatcmpl-mine')
  })

  test('add_generation_prompt, continue_final_message and chat_template_kwargs are passed to the template', async () => {
    const text = async (more: Record<string, unknown>) => {
      const messages = [
        { role: 'user', content: 'q' },
        { role: 'assistant', content: 'begun' },
      ]
      const { body } = await postJson(chat, { messages, return_prompt_text: true, ...more })
      return (body as WireAnswer & { prompt_text: string }).prompt_text
    }
    expect(await text({})).toMatch(/begun<\|im_end\|>\n<\|im_start\|>assistant\n$/)
    expect(await text({ add_generation_prompt: false })).toMatch(/begun<\|im_end\|>\n$/)
    expect(await text({ add_generation_prompt: false, continue_final_message: true })).toMatch(/begun$/)
    expect(await text({ chat_template_kwargs: { enable_thinking: false } })).toMatch(/<think>\n\n<\/think>\n\n$/)
    expect(await text({ reasoning_effort: 'none' })).toMatch(/<think>\n\n<\/think>\n\n$/)
  })

  test('the streamed and the whole answer agree for any scripted turn', async () => {
    const words = fc.string({
      unit: fc.constantFrom('a', ' ', '\n', '世', '😀', '<', '"', '{', 'tool_call', 'think', '>', '/'),
      maxLength: 20,
    })
    const call = fc.record({
      name: fc.constantFrom('bash', 'read'),
      arguments: fc.oneof(fc.dictionary(fc.string(), fc.string(), { noNullPrototype: true }), words),
    })
    const turn = fc.record({
      reasoning: fc.option(words, { nil: undefined }),
      text: words,
      tool_calls: fc.array(call, { maxLength: 2 }),
      finish: fc.constantFrom('stop' as const, 'length' as const),
    })
    const more = fc.record({
      stop: fc.option(fc.constantFrom(['a'], ['\n\n', '世😀'], ['</tool_call>']), { nil: undefined }),
      max_tokens: fc.option(fc.integer({ min: 1, max: 40 }), { nil: undefined }),
      tools: fc.option(fc.constant(tools), { nil: undefined }),
      stream_interval: fc.integer({ min: 1, max: 4 }),
    })
    const turns = fc.sample(fc.tuple(turn, more), 150)
    const scenarios = Object.fromEntries(turns.map(([step], i) => [`t${i}`, [step] as [typeof step]]))
    await using scripted = await startEngine({ script: { scenarios } })
    const url = `${scripted.url}/v1/chat/completions`
    for (const [i, [, options]] of turns.entries()) {
      const body = chatBody(`t${i}`, { ...options, logprobs: true, top_logprobs: 1 })
      const [whole, stream] = await Promise.all([postJson(url, body), postStream(url, body)])
      const choice = whole.body.choices[0]
      const joined = joinChoice(stream.chunks)
      expect(joined.ids).toEqual(choice?.token_ids)
      expect(joined.logprobs).toEqual(choice?.logprobs?.content)
      expect(joined.logprobs).toHaveLength(joined.ids.length)
      expect(joined.content).toBe(choice?.message?.content ?? '')
      expect(joined.reasoning).toBe(choice?.message?.reasoning ?? '')
      expect(joined.toolCalls.map(({ name, arguments: args }) => ({ name, arguments: args }))).toEqual(
        (choice?.message?.tool_calls ?? []).map((one) => one.function),
      )
      expect(joined.finishReason).toBe(choice?.finish_reason)
      expect(joined.stopReason).toBe(choice?.stop_reason)
      expect(stream.chunks[0]?.prompt_token_ids).toEqual(whole.body.prompt_token_ids)
    }
  })
})

describe('POST /v1/completions', () => {
  const completions = () => `${engine.url}/v1/completions`

  test('continues texts and ids, with ids per choice and log probabilities in the older format', async () => {
    const whole = (
      await postJson(completions(), { prompt: [5, 6], return_token_ids: true, logprobs: 1, max_tokens: 50 })
    ).body
    expect(whole.choices[0]).toMatchObject({ text: 'Hello there', finish_reason: 'stop', prompt_token_ids: [5, 6] })
    const logprobs = whole.choices[0]?.logprobs as unknown as {
      tokens: string[]
      token_logprobs: number[]
      text_offset: number[]
    }
    expect(logprobs.tokens.join('')).toBe('Hello there<|im_end|>')
    expect(logprobs.token_logprobs).toHaveLength(logprobs.tokens.length)
    expect(logprobs.text_offset[0]).toBe(0)
    const { chunks, isDone } = await postStream(completions(), {
      prompt: [5, 6],
      return_token_ids: true,
      max_tokens: 50,
    })
    expect(isDone).toBe(true)
    expect(joinChoice(chunks)).toMatchObject({
      text: 'Hello there',
      ids: whole.choices[0]?.token_ids,
      finishReason: 'stop',
    })
    expect(chunks[0]?.choices[0]?.prompt_token_ids).toEqual([5, 6])
    expect(chunks[1]?.choices[0]?.prompt_token_ids).toBeNull()
  })

  test('several prompts and n share one list of choices', async () => {
    const { body } = await postJson(completions(), { prompt: ['a', 'b c'], n: 2, return_token_ids: true })
    expect(body.choices.map(({ index }) => index)).toEqual([0, 1, 2, 3])
    expect(body.choices[2]?.prompt_token_ids).not.toEqual(body.choices[0]?.prompt_token_ids)
    const { chunks } = await postStream(completions(), {
      prompt: ['a', 'b c'],
      n: 2,
      stream_options: { include_usage: true },
    })
    for (const index of [0, 1, 2, 3]) expect(joinChoice(chunks, index).text).toBe('Hello there')
    expect(chunks.at(-1)?.usage).toEqual(body.usage)
  })

  test('rejects more prompts than vLLM accepts', async () => {
    const { status, body } = await postJson(completions(), { prompt: Array.from({ length: 1025 }, () => 'x') })
    expect(status).toBe(400)
    expect(body.error).toMatchObject({ param: 'prompt' })
  })

  test('reports the context length of the scripted model', async () => {
    await using other = await startEngine({ script: { default: { text: 'hi' }, model: { context_tokens: 200_000 } } })
    const { data } = (await (await fetch(`${other.url}/v1/models`)).json()) as { data: { max_model_len: number }[] }
    expect(data[0]?.max_model_len).toBe(200_000)
  })

  test('samples 16 tokens if max_tokens is absent', async () => {
    await using other = await startEngine({ script: 'default: {tokens: 100}' })
    const { body } = await postJson(`${other.url}/v1/completions`, { prompt: 'x' })
    expect(body.usage?.completion_tokens).toBe(16)
  })
})

describe('POST /inference/v1/generate', () => {
  test('accepts the output of /render and returns the same ids as chat', async () => {
    const rendered = (await (await post(`${chat}/render`, chatBody('words', { logprobs: true }))).json()) as {
      token_ids: number[]
      sampling_params: { max_tokens: number; logprobs: number }
    }
    const asChat = (await postJson(chat, chatBody('words'))).body
    expect(rendered.token_ids).toEqual(asChat.prompt_token_ids)
    expect(rendered.sampling_params).toMatchObject({ max_tokens: 32_768 - rendered.token_ids.length, logprobs: 0 })
    const generate = `${engine.url}/inference/v1/generate`
    const whole = (await postJson(generate, rendered)).body
    expect(whole.choices[0]).toMatchObject({ token_ids: asChat.choices[0]?.token_ids, finish_reason: 'stop' })
    expect(whole.choices[0]?.logprobs?.content[0]?.token).toBe(`token_id:${asChat.choices[0]?.token_ids?.[0]}`)
    const { chunks, isDone } = await postStream(generate, { ...rendered })
    expect(isDone).toBe(true)
    expect(joinChoice(chunks)).toMatchObject({ ids: whole.choices[0]?.token_ids, finishReason: 'stop' })
  })
})

describe('text endpoints', () => {
  test('/tokenize encodes a text or a conversation, and /detokenize decodes the ids', async () => {
    const read = async (path: string, body: unknown) =>
      (await (await post(engine.url + path, body)).json()) as {
        tokens: number[]
        count: number
        token_strs: string[] | null
        prompt: string
      }
    const text = await read('/tokenize', { prompt: 'hello 世界', return_token_strs: true })
    expect(text).toMatchObject({
      count: text.tokens.length,
      max_model_len: 32_768,
      token_strs: ['hel', 'lo', 'Ġ', 'ä¸ĸçķĮ'],
    })
    expect((await read('/detokenize', { tokens: text.tokens })).prompt).toBe('hello 世界')
    const { messages } = chatBody('words')
    const tokenized = await read('/tokenize', { messages, tools })
    expect(tokenized.token_strs).toBeNull()
    expect(tokenized.tokens).toEqual((await postJson(chat, chatBody('words', { tools }))).body.prompt_token_ids)
    expect((await read('/detokenize', { tokens: tokenized.tokens })).prompt).toContain(
      '"name": "read", "description": null, "parameters": null',
    )
  })

  test('numbers in tools are printed in Python’s notation', async () => {
    const body = `{"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function", "function": {"name": "f", "parameters": {"b": 1.0, "a": 12345678901234567890, "10": 1e3}}}]}`
    const { tokens } = (await (await post(`${engine.url}/tokenize`, body)).json()) as { tokens: number[] }
    const { prompt } = (await (await post(`${engine.url}/detokenize`, { tokens })).json()) as { prompt: string }
    expect(prompt).toContain('"parameters": {"b": 1.0, "a": 12345678901234567890, "10": 1000.0}')
  })

  test('a developer message is treated as a system message', async () => {
    const { tokens } = (await (
      await post(`${engine.url}/tokenize`, { messages: [{ role: 'developer', content: 'Be kind' }] })
    ).json()) as { tokens: number[] }
    const { prompt } = (await (await post(`${engine.url}/detokenize`, { tokens })).json()) as { prompt: string }
    expect(prompt).toContain('<|im_start|>system\nBe kind<|im_end|>')
  })

  test('models, health, ping, version and metrics respond', async () => {
    const get = (path: string) => fetch(engine.url + path)
    expect(await (await get('/v1/models')).json()).toMatchObject({
      object: 'list',
      data: [{ id: 'tiny', object: 'model', owned_by: 'vllm', max_model_len: 32_768 }],
    })
    expect(await (await get('/v1/models/tiny')).json()).toMatchObject({ id: 'tiny' })
    for (const name of ['other', 'a/b', '', '%']) expect((await get(`/v1/models/${name}`)).status).toBe(404)
    for (const path of ['/health', '/ping']) expect((await get(path)).status).toBe(200)
    expect(await (await get('/version')).json()).toEqual({ version: expect.stringMatching(/^\d+\.\d+/) as string })
    expect(await (await get('/metrics')).text()).toMatch(/^vllm:num_requests_running\{model_name="tiny"\} 0$/m)
  })
})

describe('rejected requests', () => {
  const refusal = async (body: unknown, path = '/v1/chat/completions') => {
    const response = await post(engine.url + path, body)
    return { status: response.status, ...((await response.json()) as WireAnswer).error }
  }

  test('an unknown model returns 404 with vLLM’s message', async () => {
    expect(await refusal(chatBody('words', { model: 'gpt-9' }))).toEqual({
      status: 404,
      message: 'The model `gpt-9` does not exist.',
      type: 'NotFoundError',
      param: 'model',
      code: 404,
    })
  })

  test('context overflow returns 400 with vLLM’s message', async () => {
    const { body } = await postJson(chat, chatBody('words'))
    const prompt = body.prompt_token_ids?.length ?? 0
    const max = 32_768 - prompt + 1
    expect(await refusal(chatBody('words', { max_tokens: max }))).toEqual({
      status: 400,
      message: `This model's maximum context length is 32768 tokens. However, you requested ${max} output tokens and your prompt contains at least ${prompt} input tokens, for a total of at least 32769 tokens. Please reduce the length of the input prompt or the number of requested output tokens. (parameter=input_tokens, value=${prompt})`,
      type: 'BadRequestError',
      param: 'input_tokens',
      code: 400,
    })
    expect((await postJson(chat, chatBody('words', { max_tokens: max - 1 }))).status).toBe(200)
    expect(await refusal(chatBody('words', { max_completion_tokens: 99_999 }))).toMatchObject({
      message: expect.stringMatching(/^max_completion_tokens=99999 cannot be greater than max_model_len/) as string,
    })
    const long = { messages: [{ role: 'user', content: 'word '.repeat(40_000) }] }
    expect(await refusal(long)).toMatchObject({ status: 400, param: 'input_tokens' })
    const huge = { messages: [{ role: 'user', content: 'x'.repeat(5_000_000) }] }
    expect(await refusal(huge)).toMatchObject({ status: 400, param: 'input_text' })
    const ids = Array.from({ length: 32_768 }, () => 5)
    expect(await refusal({ token_ids: ids, sampling_params: {} }, '/inference/v1/generate')).toMatchObject({
      message: expect.stringMatching(/^The decoder prompt \(length 32768\) plus the number of requested/) as string,
    })
  })

  test.each([
    [{ tools: [] }, 'tools', '`tools` must not be an empty array'],
    [{ tool_choice: 'auto' }, 'tool_choice', 'When using `tool_choice`, `tools` must be set.'],
    [{ tools, tool_choice: 'any' }, 'tool_choice', 'Invalid value for `tool_choice`: any!'],
    [{ tools, tool_choice: { type: 'function', function: { name: 'x' } } }, 'tool_choice', 'does not match any'],
    [{ top_logprobs: 2 }, 'top_logprobs', '`logprobs` must be set to true'],
    [{ logprobs: true, top_logprobs: -2 }, 'top_logprobs', 'must be a positive value or -1'],
    [
      { logprobs: true, top_logprobs: 21 },
      'logprobs',
      'Requested sample logprobs of 21, which is greater than max allowed: 20',
    ],
    [{ stream_options: { include_usage: true } }, 'stream_options', 'when `stream=True`'],
    [{ continue_final_message: true, add_generation_prompt: true }, null, 'Cannot set both'],
    [{ temperature: -1 }, 'temperature', 'temperature must be non-negative, got -1.'],
    [{ temperature: 3 }, 'temperature', 'temperature must be in [0, 2], got 3.'],
    [{ top_p: 0 }, 'top_p', 'top_p must be in (0, 1], got 0.'],
    [{ n: 0 }, null, 'n must be at least 1, got 0.'],
    [{ n: 2, temperature: 0 }, null, 'n must be 1 when using greedy sampling, got 2.'],
    [{ max_tokens: 0 }, 'max_tokens', 'max_tokens must be at least 1, got 0.'],
    [{ max_tokens: 5, min_tokens: 6 }, null, 'min_tokens must be less than or equal to max_tokens=5, got 6.'],
    [{ stop: ['a', ''] }, null, 'stop cannot contain an empty string.'],
    [{ stop: ['a', 'b', 'c', 'd', 'e'] }, 'body.stop', 'at most 4 items'],
    [{ logit_bias: { x: 1 } }, 'logit_bias', 'cannot be converted to integer token IDs'],
    [{ logit_bias: { 99999: 1 } }, 'logit_bias', 'out-of-vocab token ids. Vocabulary size: 6400'],
    [{ presence_penalty: 3 }, null, 'presence_penalty must be in [-2, 2], got 3.'],
    [{ max_tokens: 'many' }, 'body.max_tokens', "'loc': ('body', 'max_tokens')"],
    [{ messages: 'hi' }, 'body.messages', 'valid list'],
    [{ messages: [{ content: 'x' }] }, 'body.messages.0.role', 'Field required'],
    [{ messages: [] }, 'messages', 'no messages'],
    [
      { messages: [{ role: 'user', content: [{ type: 'image_url', image_url: { url: 'x' } }] }] },
      'messages.0.content',
      'image_url',
    ],
    [{ tools: [{ type: 'function', function: {} }] }, 'body.tools.0.function.name', 'Field required'],
    [{ stream: 'yes' }, 'body.stream', 'valid boolean'],
    [{ kv_transfer_params: { prompt_token_ids: ['a'] } }, 'body.kv_transfer_params.prompt_token_ids', 'token ids'],
    [{ kv_transfer_params: { prompt_token_ids: [4294967297] } }, null, 'Token id 4294967297 is out of vocabulary'],
    [{ prompt_logprobs: 1 }, 'prompt_logprobs', 'not supported by the tiny engine'],
  ])('%j is refused and %s named', async (more, param, message) => {
    const error = await refusal(chatBody('words', more))
    expect(error).toMatchObject({ status: 400, code: 400, param })
    expect(error.message).toContain(message)
  })

  test('bodies that are not JSON, not an object, nested too deep, of the wrong type or too large', async () => {
    expect(await refusal('{"messages": [')).toMatchObject({ status: 400, type: 'Bad Request' })
    for (const body of ['null', '[]', '5', '"x"'])
      expect(await refusal(body)).toMatchObject({ status: 400, param: 'body' })
    expect(await refusal(`{"messages": ${'['.repeat(1e6)}`)).toMatchObject({
      status: 400,
      message: expect.stringContaining('128 levels') as string,
    })
    const form = await post(chat, 'a=b', { headers: { 'content-type': 'application/x-www-form-urlencoded' } })
    expect(form.status).toBe(400)
    const large = await post(chat, JSON.stringify({ x: 'x'.repeat(65 * 2 ** 20) }))
    expect(large.status).toBe(413)
    expect(((await large.json()) as WireAnswer).error?.code).toBe(413)
  })

  test('an unknown path returns 404 and a wrong method 405, in the same format', async () => {
    expect(await refusal({}, '/v1/nothing')).toEqual({
      status: 404,
      message: 'Not Found',
      type: 'Not Found',
      param: null,
      code: 404,
    })
    const wrong = await fetch(chat)
    expect(wrong.status).toBe(405)
    expect(await wrong.json()).toEqual({
      error: { message: 'Method Not Allowed', type: 'Method Not Allowed', param: null, code: 405 },
    })
  })

  test('every body has a response, never with status 500', async () => {
    const field = fc.constantFrom(
      'messages',
      'tools',
      'stop',
      'n',
      'logit_bias',
      'stream_options',
      'tool_choice',
      'kv_transfer_params',
      'chat_template_kwargs',
      'max_tokens',
      'prompt',
      'token_ids',
      'sampling_params',
      'tokens',
      'update_info',
    )
    const path = fc.constantFrom(
      '/v1/chat/completions',
      '/v1/completions',
      '/inference/v1/generate',
      '/tokenize',
      '/detokenize',
      '/v1/chat/completions/render',
      '/abort_requests',
      '/update_weights',
      '/update_weight_version',
    )
    await fc.assert(
      fc.asyncProperty(
        path,
        fc.dictionary(field, fc.jsonValue({ maxDepth: 3 })),
        fc.boolean(),
        async (where, body, isValid) => {
          const base = isValid
            ? { ...chatBody('words'), prompt: 'x', token_ids: [1], sampling_params: {}, tokens: [1] }
            : {}
          const response = await post(engine.url + where, { ...base, ...body })
          await response.text()
          expect([200, 400, 404]).toContain(response.status)
        },
      ),
      { numRuns: runs(100) },
    )
    expect(engine.runningCount).toBe(0)
  })
})

describe('an API key', () => {
  test('is required by all endpoints except the public ones', async () => {
    await using locked = await startEngine({ script: SCRIPT, apiKey: 'secret' })
    const status = async (path: string, headers: Record<string, string> = {}) =>
      (await fetch(locked.url + path, { headers })).status
    for (const path of ['/health', '/ping', '/version']) expect(await status(path)).toBe(200)
    for (const path of ['/v1/models', '/metrics', '/weight_info', '/nothing']) expect(await status(path)).toBe(401)
    expect(await status('/v1/models', { authorization: 'Bearer wrong' })).toBe(401)
    expect(await status('/v1/models', { authorization: 'bearer secret' })).toBe(200)
  })
})

describe('a client that disconnects', () => {
  test('ends the generation immediately, and the log records it', async () => {
    records = []
    const controller = new AbortController()
    const response = await post(chat, chatBody('slow', { stream: true }), { signal: controller.signal })
    await response.body?.getReader().read()
    await vi.waitFor(() => expect(engine.runningCount).toBe(1), { timeout: 30_000, interval: 5 })
    controller.abort()
    await vi.waitFor(() => expect(engine.runningCount).toBe(0), { timeout: 30_000, interval: 5 })
    expect(records).toMatchObject([{ aborted: true, choices: [{ finish_reason: 'abort' }] }])
    expect(records[0]?.choices[0]?.token_ids.length).toBeLessThan(16)
  })

  test('ends the generation before the first token too, streamed or not', async () => {
    for (const stream of [true, false]) {
      const controller = new AbortController()
      const pending = post(chat, chatBody('never', { stream }), { signal: controller.signal }).then((response) =>
        response.text(),
      )
      pending.catch(() => {})
      await vi.waitFor(() => expect(engine.runningCount).toBe(1), { timeout: 30_000, interval: 5 })
      controller.abort()
      // Less than the delay of the first token.
      await vi.waitFor(() => expect(engine.runningCount).toBe(0), { timeout: 30_000, interval: 5 })
    }
  })

  test('a client that does not read pauses the sampling', async () => {
    await using other = await startEngine({ script: 'default: {tokens: 30000}' })
    const body = { messages: [{ role: 'user', content: 'x' }], stream: true, logprobs: true, top_logprobs: 20 }
    const controller = new AbortController()
    const response = await post(`${other.url}/v1/chat/completions`, body, { signal: controller.signal })
    await response.body?.getReader().read()
    const sampled = async () =>
      /generation_tokens_total\S* (\d+)/.exec(await (await fetch(`${other.url}/metrics`)).text())?.[1]
    let before: string | undefined
    await vi.waitFor(
      async () => {
        const last = before
        before = await sampled()
        expect(before).toBe(last)
      },
      { interval: 200, timeout: 10_000 },
    )
    expect(Number(before)).toBeLessThan(29_000)
    expect(other.runningCount).toBe(1)
    controller.abort()
    await vi.waitFor(() => expect(other.runningCount).toBe(0), { timeout: 30_000, interval: 5 })
  })
})

describe('the log', () => {
  test('has a line per generation and is complete when the engine has closed', async () => {
    const folder = await mkdtemp(join(tmpdir(), 'polar-engine-'))
    const log = join(folder, 'log.jsonl')
    const logged = await startEngine({ script: SCRIPT, log, weightVersion: 'v7' })
    const url = `${logged.url}/v1/chat/completions`
    const answers = await Promise.all(
      Array.from({ length: 20 }, () => postJson(url, chatBody('unicode', { logprobs: true }))),
    )
    const unfinished = post(url, chatBody('never', { stream: true })).then((response) => response.text())
    unfinished.catch(() => {})
    await vi.waitFor(() => expect(logged.runningCount).toBe(1), { timeout: 30_000, interval: 5 })
    await logged.close()
    const lines = (await readFile(log, 'utf8'))
      .trimEnd()
      .split('\n')
      .map((line) => JSON.parse(line) as GenerationRecord)
    expect(lines).toHaveLength(21)
    for (const { body } of answers) {
      const line = lines.find(({ request_id: id }) => id === body.id)
      expect(line).toMatchObject({
        endpoint: '/v1/chat/completions',
        model: 'tiny',
        weight_version: 'v7',
        aborted: false,
      })
      expect(line?.prompt_token_ids).toEqual(body.prompt_token_ids)
      expect(line?.choices[0]).toEqual({
        index: 0,
        token_ids: body.choices[0]?.token_ids,
        logprobs: body.choices[0]?.logprobs?.content.map(({ logprob }) => logprob),
        text: body.choices[0]?.message?.content,
        finish_reason: 'stop',
      })
    }
    expect(lines.filter(({ aborted }) => aborted)).toHaveLength(1)
    await rm(folder, { recursive: true })
  })

  test('startEngine() throws if the log cannot be opened, and leaves nothing running', async () => {
    await expect(startEngine({ script: SCRIPT, log: '/nonexistent/dir/log' })).rejects.toThrow(
      "Cannot write the engine's log",
    )
  })

  test('startEngine() reports a port that is in use', async () => {
    await expect(startEngine({ script: SCRIPT, port: engine.port })).rejects.toThrow(
      /cannot listen on 127\.0\.0\.1 port \d+/,
    )
  })
})
