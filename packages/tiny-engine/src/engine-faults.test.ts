import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { joinChoice, post, postJson, postStream, type WireAnswer } from '../../../test/support/engine-client.ts'
import { type Engine, startEngine } from './engine.ts'
import type { GenerationRecord } from './generation-log.ts'
import type { Policy } from './policies/policy.ts'

const SCRIPT = `
scenarios:
  busy: [{text: ok, fault: {kind: status, status: 429, message: Slow down, retry_after_seconds: 2, times: 2}}]
  broken: [{text: ok, fault: {kind: status, status: 500}}]
  reset: [{text: a b c d e f, fault: {kind: reset, times: 1}}]
  reset-late: [{text: a b c d e f, fault: {kind: reset, after_tokens: 3}}]
  stall: [{text: a b c, fault: {kind: stall, ms: 150}}]
  stall-late: [{text: a b c, fault: {kind: stall, ms: 150, after_tokens: 2}}]
  cut: [{text: a b c d e f, fault: {kind: cut, after_tokens: 3}}]
  cut-at-once: [{text: a b c, fault: {kind: cut, after_tokens: 0}}]
  malformed: [{text: a b c, fault: {kind: malformed}}]
  malformed-late: [{text: a b c, fault: {kind: malformed, after_tokens: 2}}]
  omit-ids: [{text: a b c, fault: {kind: omit, fields: [token_ids, prompt_token_ids]}}]
  omit-rest: [{text: a b c, fault: {kind: omit, fields: [logprobs, usage]}}]
  fewer-ids: [{text: a b c, fault: {kind: wrong-length, field: token_ids}}]
  fewer-logprobs: [{text: a b c, fault: {kind: wrong-length, field: logprobs}}]
`

let engine: Engine
let records: GenerationRecord[] = []
beforeAll(async () => {
  engine = await startEngine({ scaleOut: true, script: SCRIPT, log: (record) => records.push(record) })
})
afterAll(() => engine.close())

const url = () => `${engine.url}/v1/chat/completions`

function chatBody(scenario: string, more: Record<string, unknown> = {}): Record<string, unknown> {
  const messages = [{ role: 'user', content: `SCRIPT:${scenario}` }]
  return { messages, return_token_ids: true, logprobs: true, ...more }
}

/** Returns the received text of a stream. */
async function readUntilBroken(scenario: string): Promise<{ text: string; error: unknown }> {
  const response = await post(url(), chatBody(scenario, { stream: true }))
  let text = ''
  try {
    for await (const bytes of response.body ?? []) text += Buffer.from(bytes).toString()
  } catch (error) {
    return { text, error }
  }
  return { text, error: undefined }
}

const idsIn = (text: string) => text.split('\n\n').filter((event) => /"token_ids":\[\d/.test(event)).length

describe('faults', () => {
  test('status: an error body and Retry-After, for the configured number of requests', async () => {
    for (let i = 0; i < 2; i++) {
      const response = await post(url(), chatBody('busy#1', { stream: i === 1 }))
      expect(response.status).toBe(429)
      expect(response.headers.get('retry-after')).toBe('2')
      expect(await response.json()).toEqual({
        error: { message: 'Slow down', type: 'Too Many Requests', param: null, code: 429 },
      })
    }
    expect((await postJson(url(), chatBody('busy#1'))).status).toBe(200)
    expect((await postJson(url(), chatBody('broken'))).body.error).toMatchObject({
      type: 'InternalServerError',
      code: 500,
    })
  })

  test('reset: before any header, or after the configured number of tokens', async () => {
    await expect(post(url(), chatBody('reset#1'))).rejects.toThrow()
    await expect(post(url(), chatBody('reset#2', { stream: true }))).rejects.toThrow()
    records = []
    const { text, error } = await readUntilBroken('reset-late')
    expect(error).toBeDefined()
    expect(idsIn(text)).toBe(3)
    expect(text).not.toContain('[DONE]')
    expect(records).toMatchObject([{ aborted: true, choices: [{ finish_reason: null }] }])
    expect(records[0]?.choices[0]?.token_ids).toHaveLength(3)
  })

  test('stall: no bytes during the delay, then the whole answer', async () => {
    for (const scenario of ['stall', 'stall-late']) {
      for (const stream of [true, false]) {
        const before = performance.now()
        if (stream) expect(joinChoice((await postStream(url(), chatBody(scenario))).chunks).content).toBe('a b c')
        else expect((await postJson(url(), chatBody(scenario))).body.choices[0]?.message?.content).toBe('a b c')
        expect(performance.now() - before).toBeGreaterThanOrEqual(140)
      }
    }
    const response = await post(url(), chatBody('stall-late', { stream: true }))
    const reader = response.body!.getReader()
    const first = Buffer.from((await reader.read()).value ?? []).toString()
    expect(idsIn(first)).toBe(2)
    await reader.cancel()
  })

  test('cut: ends cleanly without finish reason and [DONE]', async () => {
    const { text, error } = await readUntilBroken('cut')
    expect(error).toBeUndefined()
    expect(idsIn(text)).toBe(3)
    expect(text).not.toContain('"finish_reason":"')
    expect(text).not.toContain('[DONE]')
    expect((await readUntilBroken('cut-at-once')).text).toBe('')
    const whole = await post(url(), chatBody('cut'))
    expect(whole.status).toBe(200)
    const body = await whole.text()
    expect(() => JSON.parse(body) as unknown).toThrow()
  })

  test('malformed: invalid JSON instead of the body, or in one event of the stream', async () => {
    for (const stream of [true, false]) {
      const response = await post(url(), chatBody('malformed', { stream }))
      expect(response.status).toBe(200)
      expect(await response.text()).toBe('<html><body>502 Bad Gateway')
    }
    const { text } = await readUntilBroken('malformed-late')
    const events = text
      .trimEnd()
      .split('\n\n')
      .map((event) => event.replace('data: ', ''))
    const broken = events
      .filter((event) => event !== '[DONE]')
      .filter((event) => {
        try {
          JSON.parse(event)
          return false
        } catch {
          return true
        }
      })
    expect(broken).toHaveLength(1)
    expect(events.indexOf(broken[0] ?? '')).toBe(3)
    expect(events.at(-1)).toBe('[DONE]')
  })

  test('omit: requested fields are absent', async () => {
    const ids = (await postJson(url(), chatBody('omit-ids'))).body
    expect(ids.prompt_token_ids).toBeNull()
    expect(ids.choices[0]).not.toHaveProperty('token_ids')
    expect(ids.choices[0]?.logprobs?.content.length).toBeGreaterThan(0)
    const streamed = await postStream(url(), chatBody('omit-ids'))
    expect(streamed.chunks[0]?.prompt_token_ids).toBeNull()
    expect(joinChoice(streamed.chunks)).toMatchObject({ ids: [], content: 'a b c' })
    const rest = (await postJson(url(), chatBody('omit-rest'))).body
    expect(rest).not.toHaveProperty('usage')
    expect(rest.choices[0]?.logprobs).toBeNull()
    const stream = await postStream(url(), chatBody('omit-rest', { stream_options: { include_usage: true } }))
    expect(stream.chunks.some(({ usage }) => usage != null)).toBe(false)
    expect(joinChoice(stream.chunks).logprobs).toEqual([])
  })

  test('wrong-length: one id or one log probability is missing, streamed or not', async () => {
    const counts = async (scenario: string) => {
      const whole = (await postJson(url(), chatBody(scenario))).body.choices[0]
      const joined = joinChoice((await postStream(url(), chatBody(scenario))).chunks)
      expect(joined.ids).toEqual(whole?.token_ids)
      expect(joined.logprobs).toEqual(whole?.logprobs?.content)
      return joined.ids.length - joined.logprobs.length
    }
    expect(await counts('fewer-ids')).toBe(-1)
    expect(await counts('fewer-logprobs')).toBe(1)
  })

  test('the same faults apply to completions and generate', async () => {
    const prompt = `<|im_start|>user\nSCRIPT:NAME<|im_end|>\n<|im_start|>assistant\n`
    const completions = `${engine.url}/v1/completions`
    const cut = await postStream(completions, { prompt: prompt.replace('NAME', 'cut'), return_token_ids: true })
    expect(cut.isDone).toBe(false)
    expect(joinChoice(cut.chunks).ids).toHaveLength(3)
    expect((await post(completions, { prompt: prompt.replace('NAME', 'broken') })).status).toBe(500)
    const { tokens } = (await (
      await post(`${engine.url}/tokenize`, { prompt: prompt.replace('NAME', 'fewer-ids') })
    ).json()) as { tokens: number[] }
    const generate = `${engine.url}/inference/v1/generate`
    const body = { token_ids: tokens, sampling_params: { logprobs: 0 } }
    const whole = (await postJson(generate, body)).body.choices[0]
    expect(whole?.token_ids?.length).toBe((whole?.logprobs?.content.length ?? 0) - 1)
    expect(joinChoice((await postStream(generate, body)).chunks).ids).toEqual(whole?.token_ids)
  })
})

describe('a policy that fails', () => {
  const failing = (after: number): Policy => ({
    name: 'failing',
    async start() {
      if (after < 0) throw new Error('cannot start')
      return {
        async *sample() {
          for (let i = 0; i < after; i++) yield { id: 30 + i, logprob: -1, rank: 0, top: [] }
          throw new Error('lost its way')
        },
      }
    },
    async [Symbol.asyncDispose]() {},
  })

  test('causes status 500 before the answer, or an error as the last event of a stream', async () => {
    await using early = await startEngine({ policy: failing(-1) })
    expect((await postJson(`${early.url}/v1/chat/completions`, chatBody('x'))).body.error).toMatchObject({
      message: 'cannot start',
      code: 500,
    })
    await using late = await startEngine({ policy: failing(3) })
    const where = `${late.url}/v1/chat/completions`
    expect((await postJson(where, chatBody('x'))).body.error).toEqual({
      message: 'lost its way',
      type: 'InternalServerError',
      param: null,
      code: 500,
    })
    const { chunks, isDone } = await postStream(where, chatBody('x', { n: 2 }))
    expect(isDone).toBe(true)
    expect((chunks.at(-1) as WireAnswer).error).toMatchObject({ message: 'lost its way', code: 500 })
    expect(late.runningCount).toBe(0)
  })
})
