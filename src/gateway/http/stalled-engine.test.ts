import Anthropic from '@anthropic-ai/sdk'
import { GoogleGenAI } from '@google/genai'
import OpenAI from 'openai'
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest'
import { SseParser } from '../../lib/net/sse.ts'
import type { StreamEvent } from '../../model/stream-event.ts'
import { createAnswerWriter, type AnswerWriter, type Caller } from './answer-writer.ts'
import { TurnCapture } from '../capture/capture-turn.ts'
import { anthropicMessages } from '../dialects/anthropic-messages.ts'
import { bareContext, type Dialect, type RequestContext } from '../dialects/dialect.ts'
import { googleGenerate } from '../dialects/google-generate.ts'
import { openaiChat } from '../dialects/openai-chat.ts'
import { openaiResponses } from '../dialects/openai-responses.ts'

const STALL_MS = 400_000
/** The shortest timeout of any harness: Gemini CLI for headers. Between events every harness waits four minutes or more. */
const SHORTEST_PATIENCE_MS = 60_000

type Fetch = () => Promise<Response>

/** A request, and the vendor's own client that reads the answer. */
interface Client {
  dialect: Dialect
  /** The end of a route's path. */
  route: string
  body: object
  query?: string
  headers?: Record<string, string>
  /** What restarts this client's timer: any byte, or only an event with data. */
  counts: 'bytes' | 'events'
  read(fetch: Fetch): Promise<string>
}

const baseURL = 'http://gateway.invalid'
const apiKey = 'k'
const chat = { model: 'm', messages: [{ role: 'user' as const, content: 'hi' }] }
const google = { contents: [{ role: 'user', parts: [{ text: 'hi' }] }] }

const SDK_HEADERS = { 'user-agent': 'OpenAI/JS 7.53.0', 'x-stainless-lang': 'js' }

const completions = { dialect: openaiChat, route: '/v1/chat/completions', body: { ...chat, stream: true } }

const responses = {
  dialect: openaiResponses,
  route: '/v1/responses',
  body: { model: 'm', input: 'hi', stream: true },
}

const clients: Record<string, Client> = {
  'OpenAI Chat': {
    ...completions,
    counts: 'events',
    async read(fetch) {
      const stream = new OpenAI({ apiKey, baseURL, fetch, maxRetries: 0 }).chat.completions.stream(chat)
      return (await stream.finalChatCompletion()).choices[0]?.message.content ?? ''
    },
  },
  'OpenAI Chat, Qwen Code': {
    ...completions,
    headers: { 'user-agent': 'QwenCode/0.24.4 (linux; x64)', 'x-stainless-lang': 'js' },
    counts: 'events',
    async read(fetch) {
      const chunks = await Array.fromAsync(
        await new OpenAI({ apiKey, baseURL, fetch, maxRetries: 0 }).chat.completions.create({ ...chat, stream: true }),
      )
      return chunks.map(({ choices }) => choices[0]?.delta.content ?? '').join('')
    },
  },
  'OpenAI Chat, SDK': {
    ...completions,
    headers: SDK_HEADERS,
    counts: 'bytes',
    async read(fetch) {
      const client = new OpenAI({ apiKey, baseURL, fetch, maxRetries: 0 })
      for await (const { id, created } of await client.chat.completions.create({ ...chat, stream: true })) {
        expect({ id, created }).toEqual({ id: 'chatcmpl-7', created: 1 })
      }
      const final = await client.chat.completions.stream(chat).finalChatCompletion()
      expect(final).toMatchObject({ id: 'chatcmpl-7', created: 1 })
      return final.choices[0]?.message.content ?? ''
    },
  },
  'OpenAI Responses, Codex': {
    ...responses,
    counts: 'events',
    // Its own reader accepts any event with data; the answer is the last event.
    async read(fetch) {
      const messages = new SseParser().push(new Uint8Array(await (await fetch()).arrayBuffer()))
      const events = messages.map(({ data }) => JSON.parse(data) as { type: string; delta?: string })
      expect(events.at(-1)?.type).toBe('response.completed')
      return events.map(({ type, delta }) => (type === 'response.output_text.delta' ? delta : '')).join('')
    },
  },
  'OpenAI Responses, SDK': {
    ...responses,
    headers: SDK_HEADERS,
    // It rejects an event before `response.created`, and has no timer besides that of the connection.
    counts: 'bytes',
    async read(fetch) {
      const client = new OpenAI({ apiKey, baseURL, fetch, maxRetries: 0 })
      const final = await client.responses.stream({ model: 'm', input: 'hi' }).finalResponse()
      expect(final).toMatchObject({ id: 'resp_chatcmpl-7', status: 'completed' })
      return final.output_text
    },
  },
  'Anthropic Messages': {
    dialect: anthropicMessages,
    route: '/v1/messages',
    body: { ...chat, max_tokens: 100, stream: true },
    counts: 'events',
    async read(fetch) {
      const client = new Anthropic({ apiKey, baseURL, fetch, maxRetries: 0 })
      return client.messages.stream({ ...chat, max_tokens: 100 }).finalText()
    },
  },
  'Google streamGenerateContent': {
    dialect: googleGenerate,
    route: ':streamGenerateContent',
    body: google,
    query: 'alt=sse',
    counts: 'events',
    async read(fetch) {
      const client = new GoogleGenAI({ apiKey, httpOptions: { baseUrl: baseURL, fetch } })
      const chunks = await Array.fromAsync(await client.models.generateContentStream({ model: 'm', contents: 'hi' }))
      return chunks.map((chunk) => chunk.text ?? '').join('')
    },
  },
  'Google streamGenerateContent as one JSON text': {
    dialect: googleGenerate,
    route: ':streamGenerateContent',
    body: google,
    counts: 'bytes',
    async read(fetch) {
      type Chunk = { candidates?: { content?: { parts?: { text?: string }[] } }[] }
      const chunks = (await (await fetch()).json()) as Chunk[]
      return chunks.map((chunk) => chunk.candidates?.[0]?.content?.parts?.[0]?.text ?? '').join('')
    },
  },
}

const ids = { ids: Int32Array.of(5), logprobs: Float32Array.of(-1) }
const answer: StreamEvent[] = [
  { type: 'answer-start', id: 'chatcmpl-7', model: 'served', created: 1, promptTokenIds: Int32Array.of(1, 2) },
  { type: 'choice-delta', choice: 0, text: 'Hel', ...ids },
  { type: 'choice-delta', choice: 0, text: 'lo', ...ids },
  { type: 'choice-delta', choice: 0, finishReason: 'stop', ...ids },
  { type: 'usage', usage: { promptTokens: 2, completionTokens: 3 } },
  { type: 'answer-end' },
]

/** Number of events before the engine stops sending. */
const silences = { 'before its first byte': 0, 'in the middle of its answer': 2, 'before the last of its events': 5 }

/** The data that a harness received, with times. */
class Recorder implements Caller {
  readonly signal = new AbortController().signal
  readonly sent: { atMs: number; text: string }[] = []
  contentType = ''
  json: { atMs: number; status: number; body: unknown } | undefined
  readonly #startedAt = Date.now()

  startStream(contentType: string): void {
    this.contentType = contentType
    this.#note('')
  }

  write(text: string): void {
    this.#note(text)
  }

  async end(text = ''): Promise<boolean> {
    this.#note(text)
    return true
  }

  async sendJson(status: number, body: unknown): Promise<boolean> {
    this.json = { atMs: Date.now() - this.#startedAt, status, body }
    return true
  }

  cut(): void {
    throw new Error('the stream was cut')
  }

  #note(text: string): void {
    this.sent.push({ atMs: Date.now() - this.#startedAt, text })
  }
}

function prepare({ dialect, route: ending, body, query, headers = {} }: Client): {
  writer: AnswerWriter
  caller: Recorder
} {
  const route = dialect.routes.find(({ kind, path }) => kind === 'generate' && path.endsWith(ending))
  if (route === undefined) throw new Error(`no route ${ending}`)
  const context: RequestContext = {
    ...bareContext(route),
    wildcards: ['m'],
    query: new URLSearchParams(query),
    headers,
  }
  const request = dialect.parseRequest({ text: JSON.stringify(body), value: body }, context)
  const caller = new Recorder()
  return { writer: createAnswerWriter({ dialect, context, request, caller }), caller }
}

/** A whole answer arrives in one batch. */
async function play(writer: AnswerWriter, silentAfter: number | 'whole'): Promise<void> {
  const capture = new TurnCapture()
  for (const event of answer) capture.add(event)
  if (silentAfter !== 'whole') await writer.deliver(answer.slice(0, silentAfter))
  await vi.advanceTimersByTimeAsync(STALL_MS)
  await writer.deliver(silentAfter === 'whole' ? capture.toEvents() : answer.slice(silentAfter))
  expect(await writer.finish({ response: capture.toResponse() })).toBe(true)
}

/** The longest time without data that this client counts. The response headers count. */
function longestSilence(sent: Recorder['sent'], counts: Client['counts']): number {
  const heard = sent.filter(({ text }, i) => counts === 'bytes' || i === 0 || hasData(text)).map(({ atMs }) => atMs)
  return Math.max(...heard.map((atMs, i) => atMs - (heard[i - 1] ?? 0)))
}

function hasData(text: string): boolean {
  return new SseParser().push(new TextEncoder().encode(text)).some(({ data }) => JSON.parse(data) !== undefined)
}

beforeEach(() => {
  vi.useFakeTimers()
})
afterEach(() => {
  vi.useRealTimers()
})

describe.each(Object.entries(clients))('%s: an engine silent for 400 s', (_, client) => {
  test.each(Object.entries(silences))(
    '%s: the harness receives keep-alives in time and reads the answer',
    async (_when, after) => {
      const { writer, caller } = prepare(client)
      await play(writer, after)
      expect(vi.getTimerCount()).toBe(0)
      expect(caller.sent[0]?.atMs).toBeLessThan(SHORTEST_PATIENCE_MS)
      expect(longestSilence(caller.sent, client.counts)).toBeLessThan(SHORTEST_PATIENCE_MS)
      vi.useRealTimers()
      const bytes = caller.sent.map(({ text }) => text).join('')
      const headers = { 'content-type': caller.contentType }
      expect(await client.read(async () => new Response(bytes, { headers }))).toBe('Hello')
    },
  )
})

/** Without a stream no byte can be sent before the status is known, so the client itself must wait long enough. */
test.each([
  { dialect: openaiChat, route: '/v1/chat/completions', body: chat },
  { dialect: openaiResponses, route: '/v1/responses', body: { model: 'm', input: 'hi' } },
  { dialect: anthropicMessages, route: '/v1/messages', body: { ...chat, max_tokens: 100 } },
  { dialect: googleGenerate, route: ':generateContent', body: google },
])('$dialect.id: a call without stream receives no data until its whole answer', async (asked) => {
  const { writer, caller } = prepare({ ...asked, counts: 'bytes', read: async () => '' })
  await play(writer, 'whole')
  expect(caller.sent).toEqual([])
  expect(caller.json).toMatchObject({ atMs: STALL_MS, status: 200 })
  expect(JSON.stringify(caller.json?.body)).toContain('Hello')
  expect(vi.getTimerCount()).toBe(0)
})
