import { afterAll, beforeAll, expect, test, vi } from 'vitest'
import { joinChoice, post, postJson, postStream } from '../../../test/support/engine-client.ts'
import { type Engine, startEngine } from './engine.ts'
import type { GenerationRecord } from './generation-log.ts'

/** The HTTP API with the real model: only behaviour that a script cannot test. */

let engine: Engine
let url: string
const records: GenerationRecord[] = []
beforeAll(async () => {
  engine = await startEngine({ model: { workers: 1 }, log: (record) => records.push(record) })
  url = `${engine.url}/v1/chat/completions`
})
afterAll(() => engine.close())

const chatBody = (more: Record<string, unknown> = {}) => ({
  messages: [{ role: 'user', content: 'Tell me about the sea.' }],
  max_tokens: 24,
  seed: 7,
  return_token_ids: true,
  logprobs: true,
  top_logprobs: 2,
  ...more,
})

test('with a seed, the streamed and the whole answer have the same tokens', async () => {
  const whole = (await postJson(url, chatBody())).body
  const { chunks } = await postStream(url, chatBody())
  const joined = joinChoice(chunks)
  expect(joined.ids).toEqual(whole.choices[0]?.token_ids)
  expect(joined.content).toBe(whole.choices[0]?.message?.content)
  expect(joined.logprobs).toEqual(whole.choices[0]?.logprobs?.content)
  for (const { logprob, top_logprobs: top } of joined.logprobs) {
    expect(logprob).toBeLessThan(0)
    expect(top).toHaveLength(2)
  }
})

test('the same prompt as ids has the same answer', async () => {
  const rendered = (await postJson(url, chatBody())).body
  const given = {
    kv_transfer_params: { prompt_token_ids: rendered.prompt_token_ids },
    messages: [{ role: 'user', content: '' }],
  }
  const answer = (await postJson(url, chatBody(given))).body
  expect(answer.prompt_token_ids).toEqual(rendered.prompt_token_ids)
  expect(answer.choices[0]?.token_ids).toEqual(rendered.choices[0]?.token_ids)
})

test('choices differ, and choice i equals the answer of seed + i', async () => {
  const several = (await postJson(url, chatBody({ n: 3 }))).body.choices.map(({ token_ids: ids }) => ids)
  expect(new Set(several.map(String)).size).toBe(3)
  expect((await postJson(url, chatBody({ seed: 8 }))).body.choices[0]?.token_ids).toEqual(several[1])
})

test('an updated output bias changes the sampled tokens and the weight version', async () => {
  const update = (bias: Record<string, number>, version: string) =>
    post(`${engine.url}/update_weights`, { update_info: { output_bias: bias }, weight_version: version })
  expect((await update({ 320: 1000 }, 'biased')).status).toBe(200)
  expect((await postJson(url, chatBody({ max_tokens: 4 }))).body.choices[0]?.token_ids).toEqual([320, 320, 320, 320])
  expect(records.at(-1)?.weight_version).toBe('biased')
  await update({}, 'plain')
  expect((await postJson(url, chatBody({ max_tokens: 4 }))).body.choices[0]?.token_ids).not.toEqual([
    320, 320, 320, 320,
  ])
})

test('a client that disconnects frees the model immediately', async () => {
  const controller = new AbortController()
  const response = await post(url, chatBody({ max_tokens: 4000, min_tokens: 4000, stream: true }), {
    signal: controller.signal,
  })
  await response.body?.getReader().read()
  controller.abort()
  await vi.waitFor(() => expect(engine.runningCount).toBe(0), { timeout: 30_000, interval: 5 })
  expect(records.at(-1)).toMatchObject({ aborted: true })
})

test.each([
  ['response_format', { response_format: { type: 'json_object' } }, '{'],
  [
    'tool_choice',
    { tools: [{ type: 'function', function: { name: 'f', parameters: {} } }], tool_choice: 'required' },
    '<tool_call>',
  ],
])(
  'a grammar of %s masks the first token before its log probability is computed, as in vLLM',
  async (_, more, start) => {
    const free = (await postJson(url, chatBody({ ...more, response_format: null, tool_choice: null, max_tokens: 1 })))
      .body
    const { choices, prompt_token_ids: promptIds } = (await postJson(url, chatBody({ ...more, max_tokens: 1 }))).body
    expect(promptIds).toEqual(free.prompt_token_ids)
    const [first] = choices[0]?.logprobs?.content ?? []
    expect(start.startsWith(first!.token) || first!.token.startsWith(start)).toBe(true)
    // The likeliest token of the model is not permitted, so the permitted tokens share the whole probability.
    const freeTop = free.choices[0]!.logprobs!.content[0]!.top_logprobs
    expect(freeTop.map(({ token }) => token)).not.toContain(first!.token)
    expect(first!.logprob).toBeGreaterThan(freeTop[1]!.logprob)
  },
)
