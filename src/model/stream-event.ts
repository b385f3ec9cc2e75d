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
  /** The weights that sampled the last token, as the engine calls them; absent when it does not say. */
  weightVersion?: string
  /** The weights that the engine had before the call was sent, as it called them; absent when it had not said yet. */
  weightVersionBefore?: string
  /** What its log probabilities mean; absent when that is not known. */
  logprobMode?: LogprobMode
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
