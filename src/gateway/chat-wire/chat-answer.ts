import type { Dispatcher } from 'undici'
import * as z from 'zod'
import { SseParser } from '../../lib/sse.ts'
import { RolloutError, type Failure } from '../../model/failure.ts'
import type { ChoiceDelta, StreamEvent, ToolCallDelta, WireFields } from '../../model/stream-event.ts'
import type { FinishReason, Usage } from '../../model/turn.ts'
import { parseJson, toRolloutError } from './engine-http.ts'

/** The events of a Chat Completions answer, streamed or whole, as an engine of that wire sends it. */
export function readAnswer(
  response: Dispatcher.ResponseData,
  engine: { base: string; signal: AbortSignal },
): AsyncGenerator<readonly StreamEvent[]> {
  const isStream = String(response.headers['content-type'] ?? '').startsWith('text/event-stream')
  return guarded(isStream ? streamEvents(response.body) : wholeEvents(response.body), engine)
}

/** What breaks while an answer comes in ends it; what came before is kept. */
async function* guarded(
  batches: AsyncGenerator<readonly StreamEvent[]>,
  { base, signal }: { base: string; signal: AbortSignal },
): AsyncGenerator<readonly StreamEvent[]> {
  try {
    yield* batches
  } catch (error) {
    const { failure } = signal.aborted ? clientGone() : toRolloutError(error, base)
    yield [{ type: 'answer-error', failure }]
  }
}

async function* streamEvents(body: AsyncIterable<Uint8Array>): AsyncGenerator<readonly StreamEvent[]> {
  const reader = new ChunkReader()
  for await (const bytes of body) {
    const events = reader.push(bytes)
    if (events.length > 0) yield events
    if (reader.ended) return
  }
  throw new RolloutError('upstream.bad-stream', 'The engine ended the stream without [DONE].')
}

async function* wholeEvents(body: Dispatcher.ResponseData['body']): AsyncGenerator<readonly StreamEvent[]> {
  const value = parseJson(await body.text())
  const answer = WireAnswer.safeParse(value)
  if (!answer.success) {
    throw new RolloutError('upstream.bad-stream', 'The engine answered 200 with a body that is no chat completion.')
  }
  yield toEvents(answer.data, value as WireFields)
}

function clientGone(): RolloutError {
  return new RolloutError('request.client-gone', 'The harness closed the call.')
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
