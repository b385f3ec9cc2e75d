import type { Dispatcher } from 'undici'
import * as z from 'zod'
import { SseParser } from '../../../lib/net/sse.ts'
import { RolloutError, type Failure } from '../../../model/failure.ts'
import type { AnswerStart, ChoiceDelta, StreamEvent, ToolCallDelta, WireFields } from '../../../model/stream-event.ts'
import type { FinishReason, LogprobMode, Usage } from '../../../model/turn.ts'
import type { UpstreamReply } from '../upstream.ts'
import { cutNumbers } from './fast/cut-numbers.ts'
import { parseJson, toRolloutError } from './engine-http.ts'
import { readFast, type FastReading } from './fast/fast-answer.ts'
import { FastChunks } from './fast/fast-chunk.ts'
import { toLogprob } from './fast/scan-bytes.ts'
import { readPieces, StreamedAnswer } from './fast/streamed-answer.ts'

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
  /** Counts the changes of weights, so that events are told apart by when they were read. */
  weights?: { readonly position: number }
  /** Present where the engine writes as vLLM does, so that most of an answer can be read without `JSON.parse`. */
  fast?: FastReading
}

/** An answer in vLLM's words: `prompt_token_ids` beside the choices, `token_ids` in each. */
export interface Translated {
  answer: WireFields
  weightVersion?: string
  weightVersionBefore?: string
  /** By choice, one per id: in the place of those on the wire, where these are not aligned with the ids. */
  logprobs?: ReadonlyMap<number, Float32Array>
  doubts?: readonly string[]
}

/** The events of a Chat Completions answer, streamed or whole, as an engine of that wire sends it. */
export function readAnswer(
  response: Dispatcher.ResponseData,
  reading: AnswerReading,
): Pick<UpstreamReply, 'events' | 'arrived'> {
  const isStream = String(response.headers['content-type'] ?? '').startsWith('text/event-stream')
  if (isStream) {
    const events = streamEvents(response.body, reading)
    return { events, arrived: events.arrived }
  }
  if (reading.fast !== undefined) return { events: guarded(fastEvents(response.body, reading.fast, reading), reading) }
  const load = async (): Promise<Translated> => {
    const answer = await readJsonObject(response)
    return (await reading.translate?.(answer)) ?? { answer }
  }
  return { events: readWhole(load, reading) }
}

/** The events of an answer that had to be put together. What `load` throws ends it. */
export function readWhole(
  load: () => Promise<Translated>,
  reading: Omit<AnswerReading, 'translate' | 'translateChunk'>,
): AsyncGenerator<readonly StreamEvent[]> {
  return guarded(wholeEvents(load, reading), reading)
}

export async function readJsonObject(response: Dispatcher.ResponseData): Promise<WireFields> {
  return toJsonObject(await response.body.text())
}

function toJsonObject(text: string): WireFields {
  const value = parseJson(text)
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
    yield [toErrorEvent(error, { base, signal })]
  }
}

function toErrorEvent(error: unknown, { base, signal }: { base: string; signal: AbortSignal }): StreamEvent {
  const { failure } = signal.aborted ? clientGone() : toRolloutError(error, base)
  return { type: 'answer-error', failure }
}

function streamEvents(body: Dispatcher.ResponseData['body'], reading: AnswerReading): StreamedAnswer {
  const toEvent = (error: Error | undefined): StreamEvent => toErrorEvent(error ?? cutStream(), reading)
  return new StreamedAnswer(body, new ChunkReader(reading), toEvent, reading.weights)
}

function cutStream(): RolloutError {
  return new RolloutError('upstream.bad-stream', 'The engine ended the stream without [DONE].')
}

async function* fastEvents(
  body: Dispatcher.ResponseData['body'],
  fast: FastReading,
  reading: AnswerReading,
): AsyncGenerator<readonly StreamEvent[]> {
  const pieces = await readPieces(body)
  const read = (answer: WireFields): StreamEvent[] => readAnswerObject({ answer }, reading)
  yield readFast(pieces, fast, read) ?? read(toJsonObject(new TextDecoder().decode(Buffer.concat(pieces))))
}

async function* wholeEvents(
  load: () => Promise<Translated>,
  reading: Pick<AnswerReading, 'forStream' | 'logprobMode'>,
): AsyncGenerator<readonly StreamEvent[]> {
  yield readAnswerObject(await load(), reading)
}

function readAnswerObject(
  translated: Translated,
  reading: Pick<AnswerReading, 'forStream' | 'logprobMode'>,
): StreamEvent[] {
  const answer = WireAnswer.safeParse(translated.answer)
  if (!answer.success) throw noCompletion()
  return toEvents(answer.data, translated, reading)
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
  readonly #reading: ChunkReading
  readonly #fast: FastChunks | undefined
  #start: AnswerStart | undefined
  /** Prompt ids that did not come with the first chunk. */
  #latePromptIds: Int32Array | undefined
  /** Whether the last event of the answer has been read. */
  ended = false

  constructor(reading: ChunkReading = {}) {
    this.#reading = reading
    this.#fast = reading.fast === undefined ? undefined : new FastChunks(readTokens)
  }

  /** `bytes` must not change afterwards. */
  push(bytes: Uint8Array): StreamEvent[] {
    const events: StreamEvent[] = []
    if (this.ended) return events
    if (this.#fast === undefined) this.#readEvents(bytes, events)
    else this.#fast.push(toBuffer(bytes), events, (rest, isEvent) => this.#readRest(rest, isEvent, events))
    return events
  }

  /** Server-sent events as the standard has them. Gives whether there may be more. */
  #readEvents(bytes: Uint8Array, events: StreamEvent[]): boolean {
    for (const message of this.#sse.push(bytes)) {
      if (this.ended) break
      this.#read(message.data, events)
    }
    return !this.ended
  }

  #readRest(bytes: Buffer, isEvent: boolean, events: StreamEvent[]): boolean {
    const chunk = isEvent ? this.#cutPromptIds(bytes) : undefined
    if (chunk === undefined) return this.#readEvents(bytes, events)
    this.#readChunk(chunk, events)
    return !this.ended
  }

  /** The chunk in an event that has so many prompt ids that it is worth to take them out first. */
  #cutPromptIds(event: Buffer): WireFields | undefined {
    const { fast } = this.#reading
    if (fast === undefined || event.length < LONG_EVENT_BYTES || !isOneLine(event)) return undefined
    const cut = cutNumbers(event.subarray(DATA.length, event.length - 2), fast.memory)
    if (cut?.promptIds === undefined || cut.choices.some(({ ids, logprobs }) => ids ?? logprobs)) return undefined
    return { ...cut.value, prompt_token_ids: cut.promptIds.numbers }
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
    this.#readChunk(this.#reading.translateChunk?.(parsed as WireFields) ?? (parsed as WireFields), events)
  }

  #readChunk(fields: WireFields, events: StreamEvent[]): void {
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

type ChunkReading = Pick<AnswerReading, 'logprobMode' | 'translateChunk' | 'fast'>

const DATA = Buffer.from('data: ')
const LONG_EVENT_BYTES = 4096

function toBuffer(bytes: Uint8Array): Buffer {
  return Buffer.isBuffer(bytes) ? bytes : Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength)
}

/** Whether an event, with the empty line that ends it, is one line of data: then what stands in it is all of its data. */
function isOneLine(event: Buffer): boolean {
  return event.indexOf(DATA) === 0 && event.indexOf(10) === event.length - 2
}

/** A chunk that does nothing but add to one choice; the fields it has besides have been read from the first one. */
function readTokens(json: string): ChoiceDelta | undefined {
  const chunk = parseJson(json) as (WireChunk & WireFields) | null | undefined
  if (typeof chunk !== 'object' || chunk === null) return undefined
  const { error, choices, usage, prompt_token_ids: promptIds } = chunk
  const [choice] = Array.isArray(choices) ? choices : []
  if (error != null || usage != null || promptIds != null || choices.length !== 1 || choice == null) return undefined
  try {
    return toDelta(choice, choice.delta ?? {})
  } catch {
    return undefined
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
  { answer: wire, weightVersion, weightVersionBefore, logprobs, doubts }: Translated,
  reading: Pick<AnswerReading, 'forStream' | 'logprobMode'>,
): StreamEvent[] {
  const events: StreamEvent[] = [startOf(wire, { ...reading, weightVersion, weightVersionBefore })]
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
  known: { logprobMode?: LogprobMode; weightVersion?: string; weightVersionBefore?: string },
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
    ...(known.weightVersionBefore === undefined ? {} : { weightVersionBefore: known.weightVersionBefore }),
    ...(known.logprobMode === undefined ? {} : { logprobMode: known.logprobMode }),
    extra,
  }
}

function promptIdsOf({ prompt_token_ids: ids }: WireFields): Int32Array | undefined {
  if (ids instanceof Int32Array) return ids
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
    event.logprobs = toLogprobs(choice.logprobs.content)
  }
  if (choice.finish_reason != null) event.finishReason = FINISH_REASONS[choice.finish_reason] ?? 'other'
  const stopReason = choice.stop_reason ?? choice.matched_stop
  if (stopReason != null) event.stopReason = stopReason
  return event
}

/** A plain loop: `Float32Array.from` with a function takes three times as long. */
function toLogprobs(entries: readonly { logprob?: number | null }[]): Float32Array {
  const logprobs = new Float32Array(entries.length)
  for (let i = 0; i < entries.length; i++) logprobs[i] = toLogprob((entries[i] as { logprob?: number }).logprob)
  return logprobs
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
