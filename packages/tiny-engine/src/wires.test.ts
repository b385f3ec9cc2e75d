import { describe, expect, test } from 'vitest'
import { joinChoice, post, postJson, postStream, type WireAnswer } from '../../../test/support/engine-client.ts'
import { startEngine, type EngineOptions } from './engine.ts'
import type { GenerationRecord } from './generation-log.ts'
import { embeddedModelFolder } from './model-package.ts'
import type { Policy } from './policies/policy.ts'
import { loadTokenizer } from './tokenizer.ts'

const SCRIPT = `
scenarios:
  tools: [{ reasoning: hm, text: first, tool_calls: [{ name: bash, arguments: { command: ls } }] }]
  emoji: [{ text: "a 🐙 b" }]
  stop: [{ text: "one two STOP three" }]
default: { text: some words }
`
const tools = [{ type: 'function', function: { name: 'bash', parameters: { type: 'object', properties: {} } } }]

/** Starts an engine with the wire. Returns functions that send requests, and the sampled ids from its log. */
async function serve(options: Pick<EngineOptions, 'wire' | 'wireVersion' | 'scaleOut' | 'maxModelLen'>) {
  const log: GenerationRecord[] = []
  const engine = await startEngine({ ...options, script: SCRIPT, log: (record) => log.push(record) })
  const url = `${engine.url}/v1/chat/completions`
  const body = (scenario: string, fields: object = {}) => ({
    messages: [{ role: 'user', content: `SCRIPT:${scenario}` }],
    ...fields,
  })
  return {
    engine,
    url: engine.url,
    sampled: () => log.at(-1)?.choices[0]?.token_ids ?? [],
    whole: (scenario: string, fields?: object) => postJson(url, body(scenario, fields)),
    stream: (scenario: string, fields?: object) => postStream(url, body(scenario, fields)),
    [Symbol.asyncDispose]: () => engine.close(),
  }
}

test('vLLM from 0.30 on answers scale-out endpoints with 403, unless they are enabled', async () => {
  const statusOf = async (options: Parameters<typeof serve>[0]) => {
    await using served = await serve(options)
    const answers = ['/v1/chat/completions/render', '/inference/v1/generate'].map(async (path) => {
      const body = { messages: [{ role: 'user', content: 'x' }], token_ids: [1], sampling_params: {} }
      const response = await post(served.url + path, body)
      return [response.status, await response.text()]
    })
    return await Promise.all(answers)
  }
  const message = 'Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them.'
  const error = JSON.stringify({ error: { message, type: 'PermissionDeniedError', param: null, code: 403 } })
  const disabled = [403, error]
  expect(await statusOf({})).toEqual([disabled, disabled])
  expect(await statusOf({ wireVersion: '0.30' })).toEqual([disabled, disabled])
  for (const options of [{ scaleOut: true }, { wireVersion: '0.29.1' }]) {
    expect((await statusOf(options)).map(([status]) => status)).toEqual([200, 200])
  }
})

const asksIds = { return_token_ids: true, logprobs: true, top_logprobs: 0 }

describe('older versions of vLLM', () => {
  test('before 0.13, a stream with tools loses the ids of text that parsers hold back; a whole answer has them', async () => {
    await using old = await serve({ wireVersion: '0.12' })
    const lost = joinChoice((await old.stream('tools', { tools, ...asksIds })).chunks)
    expect(lost.ids.length).toBeLessThan(old.sampled().length)
    expect(lost.logprobs).toHaveLength(lost.ids.length)
    expect((await old.whole('tools', { tools, ...asksIds })).body.choices[0]?.token_ids).toEqual(old.sampled())
    const plain = joinChoice((await old.stream('none', asksIds)).chunks)
    expect(plain.ids).toEqual(old.sampled())

    await using newer = await serve({ wireVersion: '0.13' })
    const kept = joinChoice((await newer.stream('tools', { tools, ...asksIds })).chunks)
    expect(kept.ids).toEqual(newer.sampled())
  })

  test.each(['{"command', '[1]', '3', '"text"'])('from 0.29 on, the tool arguments %s are read as {}', async (text) => {
    const asked = (args: string) => ({
      messages: [
        { role: 'user', content: 'hi' },
        { role: 'assistant', tool_calls: [{ id: 'a', type: 'function', function: { name: 'bash', arguments: args } }] },
        { role: 'tool', tool_call_id: 'a', content: 'x' },
      ],
      ...asksIds,
    })
    await using newer = await serve({ wireVersion: '0.29' })
    const answer = await newer.whole('', asked(text))
    expect(answer.body.prompt_token_ids).toEqual((await newer.whole('', asked('{}'))).body.prompt_token_ids)
  })

  test('before 0.29, tool arguments that are no JSON are refused and their field is named', async () => {
    await using old = await serve({ wireVersion: '0.28' })
    const call = { id: 'a', type: 'function', function: { name: 'bash', arguments: '{"command' } }
    const messages = [{ role: 'assistant', tool_calls: [call] }]
    const answer = await post(`${old.url}/v1/chat/completions`, { messages })
    expect(answer.status).toBe(400)
    expect(await answer.json()).toMatchObject({
      error: {
        code: 400,
        param: 'messages.0.tool_calls.0.function.arguments',
        message: expect.stringContaining('not JSON'),
      },
    })
  })

  test.each([
    ['0.10.2', ['reasoning_content']],
    ['0.12', ['reasoning', 'reasoning_content']],
    ['0.16', ['reasoning']],
  ])('%s has reasoning in the fields %j', async (wireVersion, names) => {
    await using old = await serve({ wireVersion })
    const { body } = await old.whole('tools', { tools })
    const message = body.choices[0]?.message ?? {}
    expect(Object.keys(message).filter((name) => name.startsWith('reasoning'))).toEqual(names)
    const { chunks } = await old.stream('tools', { tools })
    expect(JSON.stringify(chunks)).toContain(`"${names[0]}":"h"`)
  })

  test('paths and fields exist from their versions on', async () => {
    await using old = await serve({ wireVersion: '0.10.1' })
    const statusOf = async (path: string) => (await post(`${old.url}${path}`, '{}')).status
    expect(await statusOf('/v1/chat/completions/render')).toBe(404)
    expect(await statusOf('/inference/v1/generate')).toBe(404)
    expect(await statusOf('/pause')).toBe(404)
    expect(await (await fetch(`${old.url}/version`)).json()).toEqual({ version: '0.10.1' })
    const { body } = await old.whole('none', { ...asksIds, kv_transfer_params: { prompt_token_ids: [1, 2, 3] } })
    expect(body).toMatchObject({ prompt_token_ids: null, usage: { prompt_tokens: expect.any(Number) } })
    expect(body.usage?.prompt_tokens).toBeGreaterThan(3)
  })
})

interface SglangChoice {
  prompt_token_ids?: number[]
  response_token_ids?: number[]
  matched_stop?: unknown
  meta_info?: { output_token_logprobs: [number, number, null][]; weight_version: string }
}

describe('SGLang', () => {
  const choiceOf = (body: WireAnswer): SglangChoice => body.choices[0] as SglangChoice

  test('ids are in the choice, under different names, and only on request', async () => {
    await using sglang = await serve({ wire: 'sglang' })
    const plain = choiceOf((await sglang.whole('none')).body)
    expect(plain).not.toHaveProperty('response_token_ids')
    expect(plain).not.toHaveProperty('prompt_token_ids')
    const { body } = await sglang.whole('none', { return_token_ids: true, return_meta_info: true, logprobs: true })
    expect(choiceOf(body).response_token_ids).toEqual(sglang.sampled())
    expect(choiceOf(body).meta_info?.output_token_logprobs.map(([, id]) => id)).toEqual(sglang.sampled())
    expect(body).toMatchObject({ metadata: { weight_version: 'default' } })
    expect(body).not.toHaveProperty('prompt_token_ids')

    await using older = await serve({ wire: 'sglang', wireVersion: '0.5.16' })
    const requested = { return_token_ids: true, return_prompt_token_ids: true, return_meta_info: true, logprobs: true }
    const choice = choiceOf((await older.whole('none', requested)).body)
    expect(choice).not.toHaveProperty('response_token_ids')
    expect(choice.meta_info?.output_token_logprobs.map(([, id]) => id)).toEqual(older.sampled())
  })

  test.each(['return_token_ids', 'return_prompt_token_ids', 'return_meta_info'])(
    'a stream with %s is rejected',
    async (field) => {
      await using sglang = await serve({ wire: 'sglang' })
      const response = await post(`${sglang.url}/v1/chat/completions`, {
        messages: [{ role: 'user', content: 'x' }],
        stream: true,
        [field]: true,
      })
      expect(response.status).toBe(400)
      expect(await response.json()).toMatchObject({ object: 'error', type: 'BadRequestError', code: 400 })
    },
  )

  test('newer versions send all ids in one chunk near the end of a stream', async () => {
    const requested = { return_input_ids_in_sglext: true, return_output_ids_in_sglext: true, logprobs: true, tools }
    await using newer = await serve({ wire: 'sglang', wireVersion: '0.5.20' })
    const { chunks, isDone } = await newer.stream('tools', { ...requested, stream_options: { include_usage: true } })
    const extensions = chunks.flatMap((chunk) => ('sglext' in chunk ? [chunk.sglext] : []))
    expect(extensions).toMatchObject([{ output_ids: [newer.sampled()] }])
    expect(JSON.stringify(chunks.slice(0, -2))).not.toContain('_ids')
    expect(joinChoice(chunks).logprobs).toHaveLength(newer.sampled().length)
    expect([isDone, chunks.at(-1)?.usage?.completion_tokens]).toEqual([true, newer.sampled().length])

    await using older = await serve({ wire: 'sglang', wireVersion: '0.5.18' })
    expect(JSON.stringify((await older.stream('tools', requested)).chunks)).not.toContain('sglext')
  })

  test('log probabilities are those after temperature', async () => {
    await using sglang = await serve({ wire: 'sglang' })
    const at = async (temperature: number): Promise<number[]> => {
      const { body } = await sglang.whole('none', { temperature, logprobs: true })
      return body.choices[0]?.logprobs?.content.map(({ logprob }) => logprob) ?? []
    }
    const [one, half, greedy] = [await at(1), await at(0.5), await at(0)]
    expect(half).not.toEqual(one)
    expect(half.every((logprob) => logprob <= 0)).toBe(true)
    expect(greedy).toEqual(one)
  })

  test.each([
    [{ max_tokens: 9000 }, /^max_completion_tokens is too large: 9000\.This model supports at most 300/],
    [{ max_tokens: 298 }, /^Requested token count exceeds the model's maximum context length of 300 tokens\./],
    [{ long: true }, /^The input \(\d+ tokens\) is longer than the model's context length \(300 tokens\)\.$/],
  ])(
    'a request that exceeds the context has SGLang’s message: %j',
    async (requested: { long?: boolean; max_tokens?: number }, words) => {
      const { long, ...fields } = requested
      await using sglang = await serve({ wire: 'sglang', maxModelLen: 300 })
      const content = long === true ? 'word '.repeat(2000) : 'x'
      const response = await post(`${sglang.url}/v1/chat/completions`, {
        messages: [{ role: 'user', content }],
        ...fields,
      })
      expect([response.status, await response.json()]).toMatchObject([400, { message: expect.stringMatching(words) }])
    },
  )
})

interface LlamacppAnswer {
  choices: { logprobs?: { content: { id: number; token: string }[] } }[]
  __verbose?: { tokens: number[]; prompt: string; stop_type: string; stopping_word: string }
}

describe('llama.cpp', () => {
  const requested = { logprobs: true, top_logprobs: 1, verbose: true, return_tokens: true }

  test('only `tokens` of the native answer is complete; probabilities omit parts of characters', async () => {
    await using llama = await serve({ wire: 'llamacpp' })
    const body = (await llama.whole('emoji', requested)).body as unknown as LlamacppAnswer
    expect(body.__verbose?.tokens).toEqual(llama.sampled())
    const listed = body.choices[0]?.logprobs?.content.map(({ id }) => id) ?? []
    expect(listed.length).toBeLessThan(llama.sampled().length)
    expect(llama.sampled()).toEqual(expect.arrayContaining(listed))
    const streamed = joinChoice((await llama.stream('emoji', { logprobs: true })).chunks)
    expect(streamed.content).toBe('a 🐙 b')
    expect(streamed.logprobs).toHaveLength(listed.length)
  })

  test('invalid text returns 500, an unfinished character does not', async () => {
    const tokenizer = await loadTokenizer(embeddedModelFolder())
    const octopus = tokenizer.encode('🐙')
    const statusFor = async (ids: readonly number[]): Promise<number> => {
      const script = { default: { text: 'x' } }
      const policy: Policy = {
        name: 'ids',
        start: async () => ({
          async *sample() {
            for (const id of ids) yield { id, logprob: -1, rank: 0, top: [] }
          },
        }),
        async [Symbol.asyncDispose]() {},
      }
      await using engine = await startEngine({ wire: 'llamacpp', script, policy })
      const body = { messages: [{ role: 'user', content: 'x' }] }
      return (await post(`${engine.url}/v1/chat/completions`, body)).status
    }
    expect(octopus.length).toBeGreaterThan(2)
    expect(await statusFor([...octopus])).toBe(200)
    expect(await statusFor([...octopus.subarray(0, 2)])).toBe(200)
    expect(await statusFor([...octopus.subarray(1)])).toBe(500)
  })

  test('the probabilities omit the tokens of a stop string', async () => {
    await using llama = await serve({ wire: 'llamacpp' })
    const body = (await llama.whole('stop', { ...requested, stop: ['STOP'] })).body as unknown as LlamacppAnswer
    expect(body.__verbose).toMatchObject({ stop_type: 'word', stopping_word: 'STOP', tokens: llama.sampled() })
    expect(body.choices[0]?.logprobs?.content.length).toBeLessThan(llama.sampled().length)
  })

  test('only the first of several choices has a native answer', async () => {
    await using llama = await serve({ wire: 'llamacpp' })
    const { body } = await llama.whole('none', { ...requested, n: 2 })
    expect(body.choices).toHaveLength(2)
    expect(body).toMatchObject({ __verbose: { index: 0 } })
  })

  test('log probabilities with tools and stream are rejected', async () => {
    await using llama = await serve({ wire: 'llamacpp' })
    const response = await post(`${llama.url}/v1/chat/completions`, {
      messages: [{ role: 'user', content: 'x' }],
      tools,
      logprobs: true,
      stream: true,
    })
    expect([response.status, await response.json()]).toMatchObject([
      400,
      { error: { message: 'logprobs is not supported with tools + stream', type: 'invalid_request_error' } },
    ])
  })

  test('renders and tokenises a conversation like chat', async () => {
    await using llama = await serve({ wire: 'llamacpp' })
    const asking = { messages: [{ role: 'user', content: 'SCRIPT:none' }], tools }
    const { prompt } = (await (await post(`${llama.url}/apply-template`, asking)).json()) as { prompt: string }
    const body = { content: prompt, add_special: true, parse_special: true }
    const { tokens } = (await (await post(`${llama.url}/tokenize`, body)).json()) as { tokens: number[] }
    const { body: answer } = await llama.whole('none', { ...requested, tools })
    expect(answer.usage?.prompt_tokens).toBe(tokens.length)
    expect(answer).toMatchObject({ __verbose: { prompt } })
  })

  test('a high answer limit is reduced; a prompt that does not fit returns an error with its length', async () => {
    await using llama = await serve({ wire: 'llamacpp', maxModelLen: 300 })
    expect((await llama.whole('none', { max_tokens: 100_000 })).status).toBe(200)
    const messages = [{ role: 'user', content: 'word '.repeat(2000) }]
    const response = await post(`${llama.url}/v1/chat/completions`, { messages })
    expect([response.status, await response.json()]).toMatchObject([
      400,
      { error: { type: 'exceed_context_size_error', n_ctx: 300, n_prompt_tokens: expect.any(Number) } },
    ])
  })
})

describe('a hosted service', () => {
  test('rejects unknown fields, and returns no ids', async () => {
    await using hosted = await serve({ wire: 'openai' })
    const { status, body } = await hosted.whole('none', { return_token_ids: true })
    expect([status, body]).toMatchObject([
      400,
      { error: { message: 'Unrecognized request argument supplied: return_token_ids' } },
    ])
    const answer = await hosted.whole('tools', { tools, logprobs: true })
    expect(answer.status).toBe(200)
    expect(JSON.stringify(answer.body)).not.toContain('token_ids')
    expect(JSON.stringify((await hosted.stream('tools', { tools })).chunks)).not.toContain('token_ids')
    expect((await post(`${hosted.url}/tokenize`, '{}')).status).toBe(404)
  })
})
