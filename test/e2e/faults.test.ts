import Anthropic from '@anthropic-ai/sdk'
import { GoogleGenAI } from '@google/genai'
import OpenAI from 'openai'
import { describe, expect, test } from 'vitest'
import { Stack } from '../support/stack.ts'

/** One call with each vendor's SDK, without retries; resolves with the text or rejects with the error of the SDK. */
const clients: Record<string, (stack: Stack, stream: boolean) => Promise<string>> = {
  async 'openai chat'(stack, stream) {
    const body = { model: 'tiny', messages: [{ role: 'user' as const, content: 'x' }] }
    if (!stream) return (await stack.client().chat.completions.create(body)).choices[0]?.message.content ?? ''
    const answer = await stack.client().chat.completions.stream(body).finalChatCompletion()
    return answer.choices[0]?.message.content ?? ''
  },
  async 'openai responses'(stack, stream) {
    const client = new OpenAI({ baseURL: `${stack.session.baseUrl}/v1`, apiKey: stack.session.key, maxRetries: 0 })
    const body = { model: 'tiny', input: 'x' }
    if (!stream) return (await client.responses.create(body)).output_text
    const response = await client.responses.stream(body).finalResponse()
    if (response.status !== 'completed') throw new Error(`the response is ${response.status}`)
    return response.output_text
  },
  async anthropic(stack, stream) {
    const client = new Anthropic({ baseURL: stack.session.baseUrl, apiKey: stack.session.key, maxRetries: 0 })
    const body = { model: 'tiny', max_tokens: 100, messages: [{ role: 'user' as const, content: 'x' }] }
    const message = stream ? await client.messages.stream(body).finalMessage() : await client.messages.create(body)
    return message.content.map((block) => (block.type === 'text' ? block.text : '')).join('')
  },
  async google(stack, stream) {
    const client = new GoogleGenAI({ apiKey: stack.session.key, httpOptions: { baseUrl: stack.session.baseUrl } })
    const request = { model: 'tiny', contents: 'x' }
    if (!stream) return (await client.models.generateContent(request)).text ?? ''
    const chunks = await Array.fromAsync(await client.models.generateContentStream(request))
    return chunks.map((chunk) => chunk.text ?? '').join('')
  },
}

/** Faults of the engine and their failure codes in the log. `whole` faults also affect calls without streaming. */
const fatal = [
  {
    name: 'a 429',
    fault: '{ kind: status, status: 429, retry_after_seconds: 1 }',
    code: 'upstream.rate-limited',
    whole: true,
  },
  { name: 'a 500', fault: '{ kind: status, status: 500 }', code: 'upstream.failed', whole: true },
  { name: 'a 503', fault: '{ kind: status, status: 503 }', code: 'upstream.overloaded', whole: true },
  { name: 'a reset before the first byte', fault: '{ kind: reset }', code: 'upstream.reset', whole: true },
  { name: 'a reset in the stream', fault: '{ kind: reset, after_tokens: 4 }', code: 'upstream.reset', whole: false },
  { name: 'a cut stream', fault: '{ kind: cut, after_tokens: 4 }', code: 'upstream.bad-stream', whole: false },
  { name: 'malformed JSON', fault: '{ kind: malformed }', code: 'upstream.bad-stream', whole: true },
  {
    name: 'malformed JSON in the stream',
    fault: '{ kind: malformed, after_tokens: 4 }',
    code: 'upstream.bad-stream',
    whole: false,
  },
]
const doubtful = [
  { name: 'missing ids', fault: '{ kind: omit, fields: [token_ids] }' },
  { name: 'a wrong number of ids', fault: '{ kind: wrong-length, field: token_ids }' },
  { name: 'a wrong number of log probabilities', fault: '{ kind: wrong-length, field: logprobs }' },
]

const script = (fault: string): string =>
  `default: { text: "some words to be sent here", per_token_ms: 5, fault: ${fault} }`

describe.each(Object.entries(clients))('%s', (_, callModel) => {
  test.each(fatal)(
    '$name: the SDK throws, the log has the failure code, and no turn is exact',
    async ({ fault, code, whole }) => {
      await using stack = await Stack.start({ script: script(fault) })
      const modes = whole ? [true, false] : [true]
      for (const stream of modes) await expect(callModel(stack, stream)).rejects.toThrow()
      const { turns, complete } = await stack.recorded()
      expect(turns.map((turn) => turn.failure?.code)).toEqual(modes.map(() => code))
      expect(turns.map((turn) => turn.delivery)).toEqual(modes.map(() => 'undelivered'))
      expect(turns.some((turn) => turn.response?.grade === 'exact')).toBe(false)
      expect(complete).toBe(true)
    },
  )

  test.each(doubtful)('$name: the harness receives its answer, and the turn is not exact', async ({ fault }) => {
    await using stack = await Stack.start({ script: script(fault) })
    for (const stream of [true, false]) expect(await callModel(stack, stream)).toBe('some words to be sent here')
    const { turns } = await stack.recorded()
    expect(turns.map((turn) => turn.response?.grade === 'exact')).toEqual([false, false])
  })
})
