import type { JsonBytes } from '../lib/json/json-bytes.ts'
import type { Failure } from './failure.ts'
import type { FinishReason, LogprobMode, Usage } from './turn.ts'

/**
 * The common language of an answer on its way from an engine to a harness, whether it came as a stream or whole. Order:
 * `answer-start`; then `choice-delta`s of every choice in any interleaving, the last of each with a finish reason (engines
 * that tell ids only at the very end add one more with nothing else in it); then `usage` if the engine counted; then
 * `answer-end`. `answer-error` may come at any point and is the last event.
 */
export type StreamEvent = AnswerStart | ChoiceDelta | UsageReport | AnswerEnd | AnswerError

export interface AnswerStart {
  type: 'answer-start'
  id: string
  /** As the engine calls it. */
  model: string
  /** Unix seconds by the engine's clock. */
  created: number
  /** The ids the engine read; absent when it does not say, or only at the end. */
  promptTokenIds?: Int32Array
  /** The same as they stood on the wire, where nobody has read that. */
  promptTokenBytes?: JsonBytes
  /** The weights that sampled the last token, as the engine calls them; absent when it does not say. */
  weightVersion?: string
  /** The weights that the engine had before the call was sent, as it called them; absent when it had not said yet. */
  weightVersionBefore?: string
  /** What its log probabilities mean; absent when that is not known. */
  logprobMode?: LogprobMode
  /** Fields of the wire we have no word for; a dialect of the same wire relays them. */
  extra?: WireFields
}

/**
 * What one step of the engine added to one choice. Ids and text travel together but do not have to match: parsers and
 * stop strings hold text back, never ids.
 */
export interface ChoiceDelta {
  type: 'choice-delta'
  choice: number
  reasoning?: string
  text?: string
  toolCalls?: readonly ToolCallDelta[]
  /** Sampled ids, in order. */
  ids?: Int32Array
  /** One per id; NaN where the engine gave none. Absent when it gave none at all. */
  logprobs?: Float32Array
  finishReason?: FinishReason
  /** The stop string or id that ended the choice, where the engine says. */
  stopReason?: string | number
  /** The choice as it stood on the wire, for a dialect of the same wire. */
  wire?: WireFields
  /** Members of `wire` that nobody has read, with `JsonBytes` in them. There they can be read, but are not enumerable. */
  unread?: WireFields
  /** Present when this is several chunks of the wire at once, or one that is like others of its answer. */
  run?: ChunkRun
}

/** Chunks that came together and differ in nothing but their text, ids and log probabilities. */
export interface ChunkRun {
  /** The same object for all runs of this form. */
  readonly form: ChunkForm
  /** Of each chunk the text or reasoning, in JSON without its quotes. */
  readonly texts: readonly string[]
  readParts(): readonly ChunkParts[]
}

export interface ChunkForm {
  /** A delta of this form with parts of one's own. */
  withParts(parts: ChunkParts): ChoiceDelta
}

/** In which a chunk differs from others of its form. As JSON without the quotes or brackets around it. */
export interface ChunkParts {
  text: string
  logprobs: string
  ids: string
}

export interface ToolCallDelta {
  index: number
  /** Present on the first delta of a call. */
  id?: string
  name?: string
  /** The next piece of the argument text, exactly as sampled. */
  arguments?: string
}

export interface UsageReport {
  type: 'usage'
  usage: Usage
  /** As it stood on the wire. */
  wire?: WireFields
}

export interface AnswerEnd {
  type: 'answer-end'
  /** Where the engine says them only now. */
  promptTokenIds?: Int32Array
  /** What the counts do not show, and yet speaks against these being the ids the engine read and wrote. */
  doubts?: readonly string[]
}

export interface AnswerError {
  type: 'answer-error'
  failure: Failure
}

export type WireFields = Readonly<Record<string, unknown>>
