import type { Dispatcher } from 'undici'
import * as z from 'zod'
import { SseParser } from '../../lib/sse.ts'
import { RolloutError, type Failure } from '../../model/failure.ts'
import type { AnswerStart, ChoiceDelta, StreamEvent, ToolCallDelta, WireFields } from '../../model/stream-event.ts'
import type { FinishReason, LogprobMode, Usage } from '../../model/turn.ts'
import { parseJson, toRolloutError } from './engine-http.ts'

export interface AnswerReading {
  /** Where the engine is, for what is said when it breaks. */
  base: string
  signal: AbortSignal
  /**
   * The harness asked for a stream: then a whole answer begins as streams do, and does not show the `message` that would
   * stand where its dialect expects a `delta`.
   */
  forStream?: boolean
  /** Known before the answer came. */
  logprobMode?: LogprobMode
  /** Puts what an engine of a similar wire calls otherwise where this module looks; of a whole answer, and of a chunk. */
  translate?: (answer: WireFields) => Translated | Promise<Translated>
  translateChunk?: (chunk: WireFields) => WireFields
}

/** An answer in vLLM's words: `prompt_token_ids` beside the choices, `token_ids` in each. */
export interface Translated {
  answer: WireFields
  weightVersion?: string
  /** By choice, one per id: in the place of those on the wire, where these are not aligned with the ids. */
  logprobs?: ReadonlyMap<number, Float32Array>
  doubts?: readonly string[]
}

/** The events of a Chat Completions answer, streamed or whole, as an engine of that wire sends it. */
export function readAnswer(
  response: Dispatcher.ResponseData,
  reading: AnswerReading,
): AsyncGenerator<readonly StreamEvent[]> {
  const isStream = String(response.headers['content-type'] ?? '').startsWith('text/event-stream')
  if (isStream) return guarded(streamEvents(response.body, reading), reading)
  return readWhole(async () => {
    const answer = await readJsonObject(response)
    return (await reading.translate?.(answer)) ?? { answer }
  }, reading)
}

/** The events of an answer that had to be put together. What `load` throws ends it. */
export function readWhole(
  load: () => Promise<Translated>,
  reading: Omit<AnswerReading, 'translate' | 'translateChunk'>,
): AsyncGenerator<readonly StreamEvent[]> {
  return guarded(wholeEvents(load, reading), reading)
}

export async function readJsonObject(response: Dispatcher.ResponseData): Promise<WireFields> {
  const value = parseJson(await response.body.text())
  if (typeof value !== 'object' || value === null || Array.isArray(value)) throw noCompletion()
  return value as WireFields
}

function noCompletion(): RolloutError {
  return new RolloutError('upstream.bad-stream', 'The engine answered 200 with a body that is no chat completion.')
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

async function* streamEvents(
  body: AsyncIterable<Uint8Array> & { destroy(): unknown },
  reading: AnswerReading,
): AsyncGenerator<readonly StreamEvent[]> {
  const reader = new ChunkReader(reading)
  const pieces = body[Symbol.asyncIterator]()
  try {
    for (let piece = await pieces.next(); piece.done !== true; piece = await pieces.next()) {
      const events = reader.push(piece.value)
      if (events.length > 0) yield events
      if (reader.ended) return
    }
  } finally {
    if (reader.ended) void letEnd(pieces, body)
    else body.destroy()
  }
  throw new RolloutError('upstream.bad-stream', 'The engine ended the stream without [DONE].')
}

const END_WITHIN_MS = 1000

/** The response ends a moment after its last event; leaving before that would cost the connection to the engine. */
async function letEnd(pieces: AsyncIterator<Uint8Array>, body: { destroy(): unknown }): Promise<void> {
  const timer = setTimeout(() => body.destroy(), END_WITHIN_MS)
  try {
    while ((await pieces.next()).done !== true);
  } catch {
    // The answer was whole; how its connection ended is nobody's concern.
  } finally {
    clearTimeout(timer)
  }
}

async function* wholeEvents(
  load: () => Promise<Translated>,
  reading: Pick<AnswerReading, 'forStream' | 'logprobMode'>,
): AsyncGenerator<readonly StreamEvent[]> {
  const translated = await load()
  const answer = WireAnswer.safeParse(translated.answer)
  if (!answer.success) throw noCompletion()
  yield toEvents(answer.data, translated, reading)
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
  readonly #reading: Pick<AnswerReading, 'logprobMode' | 'translateChunk'>
  #start: AnswerStart | undefined
  /** Prompt ids that did not come with the first chunk. */
  #latePromptIds: Int32Array | undefined
  /** Whether the last event of the answer has been read. */
  ended = false

  constructor(reading: Pick<AnswerReading, 'logprobMode' | 'translateChunk'> = {}) {
    this.#reading = reading
  }

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
      const late = this.#latePromptIds
      events.push(late === undefined ? { type: 'answer-end' } : { type: 'answer-end', promptTokenIds: late })
      return
    }
    const parsed = parseJson(data)
    if (typeof parsed !== 'object' || parsed === null)
      return this.#fail('The engine sent an event that is not JSON.', events)
    const fields = this.#reading.translateChunk?.(parsed as WireFields) ?? (parsed as WireFields)
    const chunk = fields as unknown as WireChunk
    if (chunk.error != null) return this.#fail(errorText(chunk.error), events)
    if (!Array.isArray(chunk.choices)) return this.#fail(errorText(chunk), events)
    if (this.#start === undefined) {
      this.#start = startOf(fields, this.#reading)
      events.push(this.#start)
    } else if (this.#start.promptTokenIds === undefined) {
      this.#latePromptIds = promptIdsOf(fields) ?? this.#latePromptIds
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

/** What is left of an answer when it goes wrong: an error with a message, or something that is no chunk. */
function errorText(error: unknown): string {
  const message = (error as { message?: unknown }).message
  if (typeof message === 'string') return message
  return `The engine sent an event without choices: ${JSON.stringify(error).slice(0, 500)}`
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
  /** SGLang's name for it. */
  matched_stop?: string | number | null
  token_ids?: number[] | null
  logprobs?: { content?: { logprob?: number | null }[] | null } | null
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

function toEvents(
  answer: z.infer<typeof WireAnswer>,
  { answer: wire, weightVersion, logprobs, doubts }: Translated,
  reading: Pick<AnswerReading, 'forStream' | 'logprobMode'>,
): StreamEvent[] {
  const events: StreamEvent[] = [startOf(wire, { ...reading, weightVersion })]
  if (reading.forStream === true) events.push(...answer.choices.map(({ index }) => roleDelta(index)))
  for (const choice of answer.choices as WireChoice[]) {
    const event = toDelta(choice, choice.message ?? {})
    const aligned = logprobs?.get(choice.index)
    if (aligned !== undefined) event.logprobs = aligned
    events.push(reading.forStream === true ? withoutMessage(event) : event)
  }
  const usage = wire['usage'] as WireUsage | null | undefined
  if (usage != null) events.push(toUsage(usage))
  events.push(doubts === undefined || doubts.length === 0 ? { type: 'answer-end' } : { type: 'answer-end', doubts })
  return events
}

/** Every stream of this wire begins so, and clients of it count on being told whose words follow. */
function roleDelta(index: number): ChoiceDelta {
  const delta = { role: 'assistant', content: '' }
  return {
    type: 'choice-delta',
    choice: index,
    text: '',
    wire: { index, delta, logprobs: null, finish_reason: null },
  }
}

function withoutMessage(event: ChoiceDelta): ChoiceDelta {
  const { message: _message, ...wire } = event.wire ?? {}
  return { ...event, wire }
}

function startOf(
  chunk: WireFields,
  known: { logprobMode?: LogprobMode; weightVersion?: string | undefined },
): AnswerStart {
  const {
    id,
    object: _object,
    created,
    model,
    choices: _choices,
    usage: _usage,
    prompt_token_ids: _promptIds,
    prompt_text: _text,
    prompt_logprobs: _promptLogprobs,
    kv_transfer_params: _transfer,
    ...extra
  } = chunk
  const promptTokenIds = promptIdsOf(chunk)
  return {
    type: 'answer-start',
    id: typeof id === 'string' ? id : '',
    model: typeof model === 'string' ? model : '',
    created: Number(created ?? 0),
    ...(promptTokenIds === undefined ? {} : { promptTokenIds }),
    ...(known.weightVersion === undefined ? {} : { weightVersion: known.weightVersion }),
    ...(known.logprobMode === undefined ? {} : { logprobMode: known.logprobMode }),
    extra,
  }
}

function promptIdsOf({ prompt_token_ids: ids }: WireFields): Int32Array | undefined {
  return Array.isArray(ids) ? Int32Array.from(ids as number[]) : undefined
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
  const stopReason = choice.stop_reason ?? choice.matched_stop
  if (stopReason != null) event.stopReason = stopReason
  return event
}

/** vLLM writes -9999 where it has no number, and llama.cpp the least float there is. */
function toLogprob(value: number | null | undefined): number {
  return value == null || value <= -9999 ? Number.NaN : value
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
