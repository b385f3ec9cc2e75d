import { Agent, type Dispatcher } from 'undici'
import * as z from 'zod'
import { appendMembers, replaceValues, type JsonEdit } from '../../lib/json-edit.ts'
import { SseParser } from '../../lib/sse.ts'
import { RolloutError, type Failure, type FailureCode } from '../../model/failure.ts'
import type { ChoiceDelta, StreamEvent, ToolCallDelta, WireFields } from '../../model/stream-event.ts'
import type { FinishReason, TurnRequest, Usage } from '../../model/turn.ts'
import type { Upstream, UpstreamReply } from './upstream.ts'

export interface VllmOptions {
  /** Where the engine listens; `/v1` at the end is optional. */
  baseUrl: string
  /** The name to ask for; absent passes on the harness's own. */
  model?: string
  apiKey?: string
  /** Longest silence of the engine, before and between bytes. */
  idleTimeoutMs?: number
}

/** vLLM's OpenAI server, from 0.10.2; token ids in streams are complete from 0.13. Also the tiny engine. */
export function createVllm(options: VllmOptions): Upstream {
  const base = options.baseUrl.replace(/\/+$/, '').replace(/\/v1$/, '')
  const { origin, pathname } = new URL(base)
  const prefix = pathname.replace(/\/$/, '')
  const idleTimeoutMs = options.idleTimeoutMs ?? 15 * 60_000
  const agent = new Agent({
    headersTimeout: idleTimeoutMs,
    bodyTimeout: idleTimeoutMs,
    connections: null,
    pipelining: 1,
  })
  const auth: Record<string, string> = options.apiKey === undefined ? {} : { authorization: `Bearer ${options.apiKey}` }

  async function call(
    path: string,
    { body, accept = 'application/json', signal }: CallOptions,
  ): Promise<Dispatcher.ResponseData> {
    try {
      return await agent.request({
        origin,
        path: prefix + path,
        method: body === undefined ? 'GET' : 'POST',
        headers: { 'content-type': 'application/json', accept, ...auth },
        body,
        signal,
      })
    } catch (error) {
      throw transportError(error, base)
    }
  }

  /** How many tokens an answer may have beside this prompt; undefined when the refusal was about something else. */
  async function findRoom(message: string, request: TurnRequest, signal: AbortSignal): Promise<number | undefined> {
    const size = contextSize(message)
    if (size === undefined) return undefined
    const counted = /prompt contains (?:at least )?(\d+) (?:input )?tokens/i.exec(message)?.[1]
    const prompt = counted === undefined ? await countTokens(request, signal).catch(() => size) : Number(counted)
    return prompt < size ? size - prompt : undefined
  }

  async function countTokens(request: TurnRequest, signal: AbortSignal): Promise<number> {
    const limits = { max_tokens: 1, max_completion_tokens: 1 }
    const body = renderBody(request, { ...forcedFields(request, options.model), ...limits })
    const { token_ids } = await ask('/v1/chat/completions/render', Rendered, { body, signal })
    return token_ids.length
  }

  /** A question with a short answer. */
  async function ask<T>(path: string, schema: z.ZodType<T>, question: CallOptions): Promise<T> {
    const response = await call(path, question)
    if (response.statusCode !== 200) throw refusalError(await readRefusal(response), base)
    const body = schema.safeParse(parseJson(await response.body.text().catch(() => '')))
    if (!body.success)
      throw new RolloutError('upstream.failed', `The engine at ${base} does not answer ${path} as vLLM does.`)
    return body.data
  }

  return {
    kind: 'vllm',

    async send(request, { signal }): Promise<UpstreamReply> {
      const forced = forcedFields(request, options.model)
      const accept = request.stream ? 'text/event-stream' : 'application/json'
      const post = () => call('/v1/chat/completions', { body: renderBody(request, forced), accept, signal })
      let response = await post()
      if (response.statusCode === 400) {
        const refusal = await readRefusal(response)
        const room =
          request.sampling.maxTokens === undefined ? undefined : await findRoom(refusal.message, request, signal)
        if (room === undefined) throw refusalError(refusal, base)
        // The engine refuses an answer limit that does not fit instead of lowering it, and harnesses ask for far more
        // than a small context holds.
        Object.assign(forced, { max_tokens: room, max_completion_tokens: room })
        response = await post()
      }
      if (response.statusCode !== 200) throw refusalError(await readRefusal(response), base)
      const isStream = String(response.headers['content-type'] ?? '').startsWith('text/event-stream')
      return { forced, events: isStream ? streamEvents(response.body, signal) : wholeEvents(response.body, signal) }
    },

    countTokens,

    async listModels(signal) {
      const { data } = await ask('/v1/models', ModelList, { signal })
      return data.map((model) => model.id)
    },

    async [Symbol.asyncDispose]() {
      await agent.destroy()
    },
  }
}

interface CallOptions {
  /** Absent: a GET. */
  body?: string
  accept?: string
  signal: AbortSignal
}

const Rendered = z.looseObject({ token_ids: z.array(z.int()) })
const ModelList = z.looseObject({ data: z.array(z.looseObject({ id: z.string() })) })

// --- request ----------------------------------------------------------------------------------------------------------

/**
 * What capture needs, whatever the harness asked for. `include_reasoning: false` would hide ids and log probabilities
 * altogether; `top_logprobs: 0` is the cheapest that still reports the sampled token; an empty tool list is refused.
 */
function forcedFields(request: TurnRequest, model: string | undefined): Record<string, unknown> {
  const { body } = request.wire
  return {
    ...(model === undefined ? {} : { model }),
    return_token_ids: true,
    logprobs: true,
    top_logprobs: request.logprobs ? (body['top_logprobs'] ?? 0) : 0,
    include_reasoning: true,
    ...(request.stream
      ? { stream_options: { ...(body['stream_options'] as object | null), include_usage: true } }
      : {}),
    ...(Array.isArray(body['tools']) && body['tools'].length === 0 ? { tools: null, tool_choice: null } : {}),
  }
}

function renderBody(request: TurnRequest, forced: Record<string, unknown>): string {
  if (request.wire.api !== 'openai-chat') {
    throw new RolloutError('internal.bug', `The vllm upstream cannot send a request of ${request.wire.api}.`)
  }
  return appendMembers(replaceValues(request.wire.text, messageEdits(request)), forced)
}

/** What differs between the messages as they came and as the engine should read them. */
function messageEdits(request: TurnRequest): JsonEdit[] {
  return request.messages.flatMap((message, i): JsonEdit[] => {
    // Open models' templates know no `developer`, and would leave the whole message out. It stays where it stands.
    if (message.role === 'developer') return [{ path: ['messages', i, 'role'], json: '"system"' }]
    if (message.role !== 'assistant') return []
    return message.toolCalls.flatMap((call, j): JsonEdit[] => {
      const sent = wireArguments(request, i, j)
      const meant = toArguments(call.arguments)
      if (typeof sent !== 'string' || sent === meant) return []
      return [{ path: ['messages', i, 'tool_calls', j, 'function', 'arguments'], json: JSON.stringify(meant) }]
    })
  })
}

function wireArguments(request: TurnRequest, message: number, call: number): unknown {
  const messages = request.wire.body['messages'] as { tool_calls?: { function?: { arguments?: unknown } }[] }[]
  return messages[message]?.tool_calls?.[call]?.function?.arguments
}

/**
 * The engine parses arguments in a history and refuses what is not JSON, so a model that once sampled a broken call could
 * never go on. Quoted as one JSON string they parse, and a template prints a string as it is.
 */
function toArguments(sampled: string): string {
  return sampled === '' || parseJson(sampled) !== undefined ? sampled : JSON.stringify(sampled)
}

// --- failures ---------------------------------------------------------------------------------------------------------

interface Refusal {
  status: number
  message: string
  retryAfterSeconds?: number
  param?: string
}

const ErrorBody = z.union([
  z.looseObject({ error: z.looseObject({ message: z.string(), param: z.string().nullish() }) }),
  z.looseObject({ message: z.string(), param: z.string().nullish() }).transform((error) => ({ error })),
])

async function readRefusal(response: Dispatcher.ResponseData): Promise<Refusal> {
  const text = await response.body.text().catch(() => '')
  const body = ErrorBody.safeParse(parseJson(text))
  const retryAfter = Number(response.headers['retry-after'])
  return {
    status: response.statusCode,
    message: body.success ? body.data.error.message : text.slice(0, 500) || `status ${response.statusCode}`,
    param: body.success ? (body.data.error.param ?? undefined) : undefined,
    ...(Number.isFinite(retryAfter) && retryAfter > 0 ? { retryAfterSeconds: retryAfter } : {}),
  }
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

function refusalError(refusal: Refusal, base: string): RolloutError {
  const { status, message, ...fields } = refusal
  if (status === 400 && isOverflow(message)) return new RolloutError('request.context-overflow', message, fields)
  if (status >= 300 && status < 400) {
    return new RolloutError('upstream.failed', `The engine at ${base} answered with a redirect (${status}).`)
  }
  const code = refusalCode(status)
  // An engine that rejects our own key or path is misconfigured; the harness's key and path were right.
  if (status === 401 || status === 403 || status === 404) {
    return new RolloutError('upstream.failed', `The engine at ${base} answered ${status}: ${message}`, fields)
  }
  return new RolloutError(code, message, { ...fields, status })
}

function refusalCode(status: number): FailureCode {
  if (status === 429) return 'upstream.rate-limited'
  if (status === 503) return 'upstream.overloaded'
  return status < 500 ? 'upstream.refused' : 'upstream.failed'
}

const OVERFLOW = [
  /maximum context length is (\d+) tokens/i,
  /exceeds model's maximum context length/i,
  /longer than the maximum model length/i,
]

function isOverflow(message: string): boolean {
  return OVERFLOW.some((wording) => wording.test(message))
}

/** The size of the context, if the refusal is about it and says so. */
function contextSize(message: string): number | undefined {
  const size =
    /^max(?:_completion)?_tokens=\d+ cannot be greater than max_model_len=\D*(\d+)/.exec(message)?.[1] ??
    /maximum context length is (\d+) tokens/i.exec(message)?.[1]
  return size === undefined ? undefined : Number(size)
}

function transportError(error: unknown, base: string): Error {
  if (error instanceof RolloutError) return error
  const { code = '', name = '', message = '' } = error as { code?: string; name?: string; message?: string }
  if (name === 'AbortError' || code === 'UND_ERR_ABORTED')
    return new RolloutError('request.client-gone', 'The call was cancelled.')
  if (code === 'UND_ERR_HEADERS_TIMEOUT' || code === 'UND_ERR_BODY_TIMEOUT') {
    return new RolloutError('upstream.timeout', `The engine at ${base} was silent for too long.`, { cause: error })
  }
  if (code === 'ECONNREFUSED' || code === 'ENOTFOUND' || code === 'EAI_AGAIN' || code === 'UND_ERR_CONNECT_TIMEOUT') {
    return new RolloutError('upstream.unreachable', `No engine answers at ${base} (${code}); is it running?`, {
      cause: error,
    })
  }
  return new RolloutError('upstream.reset', `The engine at ${base} broke the connection: ${message || name}`, {
    cause: error,
  })
}

function failureOf(error: unknown): Failure {
  return error instanceof RolloutError
    ? error.failure
    : (transportError(error, 'the upstream URL') as RolloutError).failure
}

// --- answers ----------------------------------------------------------------------------------------------------------

async function* streamEvents(
  body: AsyncIterable<Uint8Array>,
  signal: AbortSignal,
): AsyncGenerator<readonly StreamEvent[]> {
  const reader = new ChunkReader()
  try {
    for await (const bytes of body) {
      const events = reader.push(bytes)
      if (events.length > 0) yield events
      if (reader.ended) return
    }
    yield [{ type: 'answer-error', failure: badStream('The engine ended the stream without [DONE].') }]
  } catch (error) {
    yield [{ type: 'answer-error', failure: signal.aborted ? clientGone() : failureOf(error) }]
  }
}

async function* wholeEvents(
  body: Dispatcher.ResponseData['body'],
  signal: AbortSignal,
): AsyncGenerator<readonly StreamEvent[]> {
  try {
    const value = parseJson(await body.text())
    const answer = WireAnswer.safeParse(value)
    if (!answer.success)
      throw new RolloutError('upstream.bad-stream', 'The engine answered 200 with a body that is no chat completion.')
    yield toEvents(answer.data, value as WireFields)
  } catch (error) {
    yield [{ type: 'answer-error', failure: signal.aborted ? clientGone() : failureOf(error) }]
  }
}

function clientGone(): Failure {
  return new RolloutError('request.client-gone', 'The harness closed the call.').failure
}

function badStream(message: string): Failure {
  return new RolloutError('upstream.bad-stream', message).failure
}

/** Bytes of a chat stream to events. The same bytes give the same events however they are cut. */
export class ChunkReader {
  readonly #sse = new SseParser()
  #started = false
  /** Whether the last event of the answer has been read. */
  ended = false

  push(bytes: Uint8Array): StreamEvent[] {
    const events: StreamEvent[] = []
    for (const message of this.#sse.push(bytes)) {
      if (this.ended) break
      this.#read(message.data, events)
    }
    return events
  }

  #read(data: string, events: StreamEvent[]): void {
    if (data === '[DONE]') {
      this.ended = true
      events.push({ type: 'answer-end' })
      return
    }
    const chunk = parseJson(data) as WireChunk | undefined
    if (typeof chunk !== 'object' || chunk === null)
      return this.#fail('The engine sent an event that is not JSON.', events)
    if (chunk.error != null) return this.#fail(errorText(chunk.error), events)
    if (!Array.isArray(chunk.choices)) return this.#fail('The engine sent an event without choices.', events)
    if (!this.#started) {
      this.#started = true
      events.push(startOf(chunk as unknown as WireFields))
    }
    try {
      for (const choice of chunk.choices) events.push(toDelta(choice, choice.delta ?? {}))
    } catch {
      return this.#fail('The engine sent a choice of an unknown form.', events)
    }
    if (chunk.usage != null) events.push(toUsage(chunk.usage))
  }

  #fail(message: string, events: StreamEvent[]): void {
    this.ended = true
    events.push({ type: 'answer-error', failure: badStream(message) })
  }
}

function errorText(error: unknown): string {
  const message = (error as { message?: unknown }).message
  return typeof message === 'string' ? message : JSON.stringify(error)
}

/** The fields we read, loosely: a stream is read chunk by chunk and a strict check of each would cost more than it finds. */
interface WireChunk {
  error?: unknown
  choices: WireChoice[]
  usage?: WireUsage | null
}

interface WireChoice {
  index: number
  delta?: WireDelta
  message?: WireDelta
  finish_reason?: string | null
  stop_reason?: string | number | null
  token_ids?: number[] | null
  logprobs?: { content?: { logprob?: number }[] | null } | null
}

interface WireDelta {
  content?: string | null
  reasoning?: string | null
  reasoning_content?: string | null
  tool_calls?: WireToolCallDelta[] | null
}

interface WireToolCallDelta {
  index?: number
  id?: string | null
  function?: { name?: string | null; arguments?: string | null }
}

interface WireUsage {
  prompt_tokens: number
  completion_tokens?: number
  prompt_tokens_details?: { cached_tokens?: number | null } | null
}

const WireAnswer = z.looseObject({
  choices: z.array(
    z.looseObject({
      index: z.int(),
      message: z.looseObject({ content: z.string().nullish() }),
      finish_reason: z.string().nullish(),
      token_ids: z.array(z.int()).nullish(),
    }),
  ),
})

function toEvents(answer: z.infer<typeof WireAnswer>, value: WireFields): StreamEvent[] {
  const events: StreamEvent[] = [startOf(value)]
  for (const choice of answer.choices as WireChoice[]) events.push(toDelta(choice, choice.message ?? {}))
  const usage = value['usage'] as WireUsage | null | undefined
  if (usage != null) events.push(toUsage(usage))
  events.push({ type: 'answer-end' })
  return events
}

function startOf(chunk: WireFields): StreamEvent {
  const {
    id,
    object: _object,
    created,
    model,
    choices: _choices,
    usage: _usage,
    prompt_token_ids,
    prompt_text: _text,
    prompt_logprobs: _promptLogprobs,
    kv_transfer_params: _transfer,
    ...extra
  } = chunk
  return {
    type: 'answer-start',
    id: typeof id === 'string' ? id : '',
    model: typeof model === 'string' ? model : '',
    created: Number(created ?? 0),
    ...(Array.isArray(prompt_token_ids) ? { promptTokenIds: Int32Array.from(prompt_token_ids as number[]) } : {}),
    extra,
  }
}

function toDelta(choice: WireChoice, delta: WireDelta): ChoiceDelta {
  const event: ChoiceDelta = { type: 'choice-delta', choice: choice.index, wire: choice as unknown as WireFields }
  const reasoning = delta.reasoning ?? delta.reasoning_content
  if (delta.content != null) event.text = delta.content
  if (reasoning != null) event.reasoning = reasoning
  if (delta.tool_calls != null && delta.tool_calls.length > 0) event.toolCalls = delta.tool_calls.map(toToolCallDelta)
  if (choice.token_ids != null) event.ids = Int32Array.from(choice.token_ids)
  if (choice.logprobs?.content != null) {
    event.logprobs = Float32Array.from(choice.logprobs.content, (entry) => toLogprob(entry.logprob))
  }
  if (choice.finish_reason != null) event.finishReason = FINISH_REASONS[choice.finish_reason] ?? 'other'
  if (choice.stop_reason != null) event.stopReason = choice.stop_reason
  return event
}

/** vLLM writes -9999 where it has no number. */
function toLogprob(value: number | undefined): number {
  return value === undefined || value <= -9999 ? Number.NaN : value
}

function toToolCallDelta(call: WireToolCallDelta, position: number): ToolCallDelta {
  return {
    index: call.index ?? position,
    ...(call.id == null ? {} : { id: call.id }),
    ...(call.function?.name == null ? {} : { name: call.function.name }),
    ...(call.function?.arguments == null ? {} : { arguments: call.function.arguments }),
  }
}

function toUsage(wire: WireUsage): StreamEvent {
  const cached = wire.prompt_tokens_details?.cached_tokens
  const usage: Usage = {
    promptTokens: wire.prompt_tokens,
    completionTokens: wire.completion_tokens ?? 0,
    ...(cached == null ? {} : { cachedTokens: cached }),
  }
  return { type: 'usage', usage, wire: wire as unknown as WireFields }
}

const FINISH_REASONS: Readonly<Record<string, FinishReason>> = {
  stop: 'stop',
  length: 'length',
  tool_calls: 'tool-calls',
  content_filter: 'content-filter',
  abort: 'abort',
}
