import type { Readable } from 'node:stream'
import type { Dispatcher } from 'undici'
import * as z from 'zod'
import { parseJson, parseJsonObject } from '../../../lib/json/json-text.ts'
import { SseParser } from '../../../lib/net/sse.ts'
import { RolloutError, type Failure } from '../../../model/failure.ts'
import type { ToolCallDelta } from '../../../model/stream-event.ts'
import type { FinishReason, LogprobMode, Usage } from '../../../model/turn.ts'
import type { DeltaEvent, StartEvent, WireEvent, WireFields } from '../../wire-event.ts'
import type { UpstreamReply } from '../upstream.ts'
import { toRolloutError } from './engine-http.ts'
import { FastChunks, readFastAnswer, readPromptChunk, type FastReading } from './fast/read-fast.ts'
import { StreamedAnswer } from './streamed-answer.ts'
import { toLogprob } from './to-logprob.ts'

/*
 * Reads a Chat Completions answer as events. The readers of this file define what an answer means.
 *
 * - A stream: `StreamedAnswer` (streamed-answer.ts) moves its bytes, `ChunkReader` (this file) reads them. With `fast`, the
 *   `ChunkReader` passes the bytes to `FastChunks` (fast/) first, and reads the events that `FastChunks` does not accept.
 * - A whole answer: `readAnswerObject` (this file) reads it after `JSON.parse`. With `fast`, `readFastAnswer` (fast/) runs
 *   first, and `JSON.parse` only if it returns undefined.
 */

export interface AnswerReading {
  /** URL of the engine, for error messages. */
  base: string
  signal: AbortSignal
  /**
   * The harness requested a stream. The events of a whole answer then begin like a stream, without the `message` on the
   * wire: the dialect expects a `delta`.
   */
  forStream?: boolean
  logprobMode?: LogprobMode
  /** Translates an answer of a similar wire to vLLM's field names. */
  translate?: (answer: WireFields) => Translated | Promise<Translated>
  translateChunk?: (chunk: WireFields) => WireFields
  /** Counts the changes of weights. A batch of events never spans a change. */
  weights?: { readonly position: number }
  /** Present when the engine writes vLLM's format, which the fast readers accept. */
  fast?: FastReading
}

/** An answer with vLLM's field names: `prompt_token_ids` beside the choices, `token_ids` in each choice. */
export interface Translated {
  answer: WireFields
  weightVersion?: string
  weightVersionBefore?: string
  /** By choice, one per id. Replaces the log probabilities on the wire where these are not aligned with the ids. */
  logprobs?: ReadonlyMap<number, Float32Array>
  doubts?: readonly string[]
}

/** Returns the events of a Chat Completions answer, streamed or whole. */
export function readAnswer(
  response: Dispatcher.ResponseData,
  reading: AnswerReading,
): Pick<UpstreamReply, 'events' | 'arrived'> {
  const isStream = String(response.headers['content-type'] ?? '').startsWith('text/event-stream')
  if (isStream) {
    const toEvent = (error: Error | undefined): WireEvent => toErrorEvent(error ?? cutStream(), reading)
    const events = new StreamedAnswer(response.body, new ChunkReader(reading), toEvent, reading.weights)
    return { events, arrived: events.arrived }
  }
  const { fast } = reading
  if (fast !== undefined) return { events: guarded(() => readFastOrWhole(response.body, fast, reading), reading) }
  const load = async (): Promise<Translated> => {
    const answer = await readJsonObject(response)
    return (await reading.translate?.(answer)) ?? { answer }
  }
  return { events: readWhole(load, reading) }
}

/** Returns the events of an answer that `load` assembles. An error of `load` becomes the last event. */
export function readWhole(
  load: () => Promise<Translated>,
  reading: Omit<AnswerReading, 'translate' | 'translateChunk'>,
): AsyncGenerator<readonly WireEvent[]> {
  return guarded(async () => readAnswerObject(await load(), reading), reading)
}

/** Returns the bytes of a body in the pieces in which they arrived. */
function readPieces(body: Readable): Promise<Buffer[]> {
  const pieces: Buffer[] = []
  return new Promise((resolve, reject) => {
    body.on('data', (piece: Buffer) => pieces.push(piece))
    body.on('end', () => resolve(pieces))
    body.on('error', reject)
    body.on('close', () => {
      if (!body.readableEnded) reject(new Error('the body was closed before its end'))
    })
  })
}

export async function readJsonObject(response: Dispatcher.ResponseData): Promise<WireFields> {
  return toJsonObject(await response.body.text())
}

function toJsonObject(text: string): WireFields {
  const value = parseJsonObject(text)
  if (value === undefined) throw noCompletion()
  return value
}

function noCompletion(): RolloutError {
  return new RolloutError('upstream.bad-stream', 'The engine answered 200 with a body that is no chat completion.')
}

/** Yields one batch. An error becomes its only event. */
async function* guarded(
  read: () => Promise<WireEvent[]>,
  reading: Pick<AnswerReading, 'base' | 'signal'>,
): AsyncGenerator<readonly WireEvent[]> {
  yield await read().catch((error: unknown) => [toErrorEvent(error, reading)])
}

function toErrorEvent(error: unknown, { base, signal }: Pick<AnswerReading, 'base' | 'signal'>): WireEvent {
  const { failure } = signal.aborted ? clientGone() : toRolloutError(error, base)
  return { type: 'answer-error', failure }
}

function cutStream(): RolloutError {
  return new RolloutError('upstream.bad-stream', 'The engine ended the stream without [DONE].')
}

async function readFastOrWhole(body: Readable, fast: FastReading, reading: AnswerReading): Promise<WireEvent[]> {
  const pieces = await readPieces(body)
  const read = (answer: WireFields): WireEvent[] => readAnswerObject({ answer }, reading)
  return readFastAnswer(pieces, fast, read) ?? read(toJsonObject(new TextDecoder().decode(Buffer.concat(pieces))))
}

function readAnswerObject(
  translated: Translated,
  reading: Pick<AnswerReading, 'forStream' | 'logprobMode'>,
): WireEvent[] {
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

/** Reads the bytes of a chat stream. The events do not depend on how the network cut the bytes. */
export class ChunkReader {
  readonly #sse = new SseParser()
  readonly #reading: ChunkReading
  readonly #fast: FastChunks | undefined
  #start: StartEvent | undefined
  #latePromptIds: Int32Array | undefined
  /** Whether the last event of the answer has been read. */
  ended = false

  constructor(reading: ChunkReading = {}) {
    this.#reading = reading
    this.#fast = reading.fast === undefined ? undefined : new FastChunks(readTokens)
  }

  /** `bytes` must not change afterwards. */
  push(bytes: Uint8Array): WireEvent[] {
    const events: WireEvent[] = []
    if (this.ended) return events
    if (this.#fast === undefined) this.#readEvents(bytes, events)
    else this.#fast.push(toBuffer(bytes), events, (rest, isEvent) => this.#readRest(rest, isEvent, events))
    return events
  }

  /** Reads server-sent events. Returns whether the stream may continue. */
  #readEvents(bytes: Uint8Array, events: WireEvent[]): boolean {
    for (const message of this.#sse.push(bytes)) {
      if (this.ended) break
      this.#read(message.data, events)
    }
    return !this.ended
  }

  #readRest(bytes: Buffer, isEvent: boolean, events: WireEvent[]): boolean {
    const { fast } = this.#reading
    const chunk = isEvent && fast !== undefined ? readPromptChunk(bytes, fast) : undefined
    if (chunk === undefined) return this.#readEvents(bytes, events)
    this.#readChunk(chunk, events)
    return !this.ended
  }

  #read(data: string, events: WireEvent[]): void {
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

  #readChunk(fields: WireFields, events: WireEvent[]): void {
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

  #fail(message: string, events: WireEvent[]): void {
    this.ended = true
    events.push({ type: 'answer-error', failure: badStream(message) })
  }
}

type ChunkReading = Pick<AnswerReading, 'logprobMode' | 'translateChunk' | 'fast'>

function toBuffer(bytes: Uint8Array): Buffer {
  return Buffer.isBuffer(bytes) ? bytes : Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength)
}

/** Reads a chunk that only adds to one choice; its other fields repeat those of the first chunk. */
function readTokens(json: string): DeltaEvent | undefined {
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

/** Describes an event that is no chunk: an error with a message, or an unknown object. */
function errorText(error: unknown): string {
  const message = (error as { message?: unknown }).message
  if (typeof message === 'string') return message
  return `The engine sent an event without choices: ${JSON.stringify(error).slice(0, 500)}`
}

/** The fields that are read. They are not validated: a schema check of every chunk would cost too much. */
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
  /** SGLang's name of `stop_reason`. */
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
): WireEvent[] {
  const events: WireEvent[] = [startOf(wire, { ...reading, weightVersion, weightVersionBefore })]
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

/** The first chunk of each choice in every stream of this wire. Clients rely on its role. */
function roleDelta(index: number): DeltaEvent {
  const delta = { role: 'assistant', content: '' }
  return {
    type: 'choice-delta',
    choice: index,
    text: '',
    wire: { index, delta, logprobs: null, finish_reason: null },
  }
}

function withoutMessage(event: DeltaEvent): DeltaEvent {
  const { message: _message, ...wire } = event.wire ?? {}
  return { ...event, wire }
}

function startOf(
  chunk: WireFields,
  known: { logprobMode?: LogprobMode; weightVersion?: string; weightVersionBefore?: string },
): StartEvent {
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
  return {
    type: 'answer-start',
    id: typeof id === 'string' ? id : '',
    model: typeof model === 'string' ? model : '',
    created: Number(created ?? 0),
    promptTokenIds: promptIdsOf(chunk),
    weightVersion: known.weightVersion,
    weightVersionBefore: known.weightVersionBefore,
    logprobMode: known.logprobMode,
    extra,
  }
}

function promptIdsOf({ prompt_token_ids: ids }: WireFields): Int32Array | undefined {
  if (ids instanceof Int32Array) return ids
  return Array.isArray(ids) ? Int32Array.from(ids as number[]) : undefined
}

function toDelta(choice: WireChoice, delta: WireDelta): DeltaEvent {
  const event: DeltaEvent = { type: 'choice-delta', choice: choice.index, wire: choice as unknown as WireFields }
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

function toUsage(wire: WireUsage): WireEvent {
  const cached = wire.prompt_tokens_details?.cached_tokens
  const usage: Usage = {
    promptTokens: wire.prompt_tokens,
    completionTokens: wire.completion_tokens ?? 0,
    cachedTokens: cached ?? undefined,
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
