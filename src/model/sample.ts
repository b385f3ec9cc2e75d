import * as z from 'zod'
import type { CallSampling } from './turn-sampling.ts'
import type { FinishReason, Exactness, LogprobMode, Steering } from './turn.ts'

/**
 * What a call was for. `main`: the agent's own work. `retry`: one of several answers to the same request, not the one the
 * conversation went on from. `abandoned`: an answer nothing went on from although the conversation did go on.
 */
export const Label = z.enum(['main', 'subagent', 'compaction', 'side-call', 'retry', 'abandoned'])
export type Label = z.infer<typeof Label>

/**
 * Where a token of a sample comes from. `sampled`: the policy, in a recorded call. `injected`: stands where an assistant
 * spoke, but no recorded call sampled it. `context`: part of a prompt, nobody could say which.
 */
export const Provenance = z.enum(['sampled', 'template', 'system', 'user', 'tool', 'injected', 'context'])
export type Provenance = z.infer<typeof Provenance>

/** Tokens from `from` to the next span's (or the end) that share all of the below. */
export interface Span {
  from: number
  provenance: Provenance
  /** The call that sampled them; absent unless `sampled`. */
  call?: string
  /** The weights that sampled them; absent when unknown. The oldest possible ones where `newestWeightVersion` is present. */
  weightVersion?: string
  /** Present when a change of weights makes the version uncertain: the newest possible one. */
  newestWeightVersion?: string
}

/** One recorded call in a sample, and where its sampled tokens lie. */
export interface SampleCall {
  /** `<turn id>#<choice>`. */
  key: string
  turnId: string
  choice: number
  label: Label
  /** Index of its first sampled token, and behind its last. */
  from: number
  to: number
  /** Whether its tokens are trained here. */
  isTrained: boolean
  finishReason: FinishReason
  grade: Exactness
  /** The oldest weights that may have sampled the call's first token; absent when unknown. */
  weightVersion?: string
  /** The newest weights that may have sampled one of the call's tokens; absent when the same or unknown. */
  newestWeightVersion?: string
  /** The sampling parameters in force; absent when the record does not tell. */
  sampling?: CallSampling
  /** What its log probabilities are taken of; absent when unknown. */
  logprobMode?: LogprobMode
  /** How its request steered the sampling; absent when it did not. */
  steeredBy?: readonly Steering[]
  /** Unix milliseconds. */
  startedAt: number
  endedAt?: number
  /** The model meant a tool call the engine could not read, or one with arguments that are no JSON. */
  hasParserFailure: boolean
}

/**
 * Messages in Chat Completions' form: prompt and response together are the request of the sample's last call and its answer.
 * Answers of the sample's calls stand as they were sampled; assistant messages of other calls stand as the harness sent them.
 */
export interface SampleMessages {
  prompt: readonly unknown[]
  response: readonly unknown[]
  /**
   * For each call of the sample, the index in `response` of the message with its answer. Two calls have the same index where
   * the second one resumed a truncated answer and the harness joined both.
   */
  answers: readonly number[]
  tools: readonly unknown[] | null
}

/**
 * What a trainer reads: one sequence of tokens, with for each whether it is trained and what is known of it. All arrays
 * have the length of `ids`. Plain memory end to end: lists of numbers are made by exporters, where a format asks for them.
 */
export interface Sample {
  /** `<session id>/<number>`, from 0 in the order of the session's samples. */
  id: string
  sessionId: string
  builder: string
  label: Label
  ids: Int32Array
  /** How many of them are the prompt of the first trained call's chain; the rest is the response. */
  promptLength: number
  /** 1 where the token was sampled and is to be trained. */
  mask: Uint8Array
  /** NaN where the policy did not sample, or the engine did not say. */
  logprobs: Float32Array
  calls: readonly SampleCall[]
  /** Of the last trained call. */
  finishReason: FinishReason
  /** Share of the session; those of one session add up to 1. */
  weight: number
  /** Leading tokens that an earlier sample of this session has too; absent when none. */
  shared?: { with: string; length: number }
  /** Trained tokens in front of which something else stands than what the engine read. 0 unless spliced. */
  mismatchedTokens: number
  /** Where every token comes from, without gaps, from 0. Worked out on demand, as are the messages. */
  spans(): readonly Span[]
  /** Read from the recorded requests: most of a session's bytes are there. */
  messages(): SampleMessages
  /** Absent: not graded. Never zero for want of a grade. */
  reward?: number
  components?: Readonly<Record<string, number>>
  /** Absent unless asked for and graded. */
  advantage?: number
  /** Samples of one group answer the same task; absent when the session belongs to none. */
  group?: string
}

/** Sampled tokens that are trained nowhere, and why. */
export interface Exclusion {
  turnId: string
  /** Absent for a turn that gave no answer at all. */
  choice?: number
  tokens: number
  reason: ExclusionReason
  /** In words, for people. */
  detail: string
}

export const ExclusionReason = z.enum([
  'unfinished',
  'failed',
  'no-answer',
  'undelivered',
  'duplicate-record',
  'grade',
  'label',
  'steered',
  'finish-reason',
  'parser-failure',
  'no-logprobs',
  'no-tokens',
  'too-long',
  'too-short',
  'lost-by-splice',
  'left-out-by-builder',
])
export type ExclusionReason = z.infer<typeof ExclusionReason>
