import * as z from 'zod'
import type { CallSampling } from './turn-sampling.ts'
import type { FinishReason, Exactness, LogprobMode, Steering } from './turn.ts'

/**
 * Purpose of a call. `main`: work of the main agent. `retry`: one of several answers to the same request, but not the
 * continued one. `abandoned`: an answer that no call continues, although the conversation continued.
 */
export const Label = z.enum(['main', 'subagent', 'compaction', 'side-call', 'retry', 'abandoned'])
export type Label = z.infer<typeof Label>

/**
 * Origin of a token. `sampled`: by the policy in a recorded call. `injected`: in an assistant message that no recorded call
 * sampled. `context`: in a prompt, exact origin unknown.
 */
export const Provenance = z.enum(['sampled', 'template', 'system', 'user', 'tool', 'injected', 'context'])
export type Provenance = z.infer<typeof Provenance>

/** Tokens from `from` to the next span, or the end, with the same origin. */
export interface Span {
  from: number
  provenance: Provenance
  /** The call that sampled the tokens; absent unless `sampled`. */
  call?: string
  /** Weight version; absent if unknown. The oldest possible one if `newestWeightVersion` is present. */
  weightVersion?: string
  /** The newest possible version, if a change of weights makes the version uncertain. */
  newestWeightVersion?: string
}

/** One recorded call of a sample and the range of its sampled tokens. */
export interface SampleCall {
  /** `<turn id>#<choice>`. */
  key: string
  turnId: string
  choice: number
  label: Label
  /** Index of its first sampled token. `to` is the index behind its last. */
  from: number
  to: number
  /** Whether this sample trains its tokens. */
  isTrained: boolean
  finishReason: FinishReason
  /** Exactness of its token ids. */
  grade: Exactness
  /** Oldest possible weight version of the first token; absent if unknown. */
  weightVersion?: string
  /** Newest possible weight version of any token; absent if equal or unknown. */
  newestWeightVersion?: string
  /** Effective sampling parameters; absent if the record does not contain them. */
  sampling?: CallSampling
  /** Kind of its log probabilities; absent if unknown. */
  logprobMode?: LogprobMode
  /** How its request steered the sampling; absent if it did not. */
  steeredBy?: readonly Steering[]
  /** Unix milliseconds. */
  startedAt: number
  endedAt?: number
  /** Whether the engine could not parse a tool call, or its arguments are not JSON. */
  hasParserFailure: boolean
}

/**
 * Messages in Chat Completions format: prompt and response together are the request of the sample's last call and its answer.
 * Answers of the sample's calls are as sampled; assistant messages of other calls are as the harness sent them.
 */
export interface SampleMessages {
  prompt: readonly unknown[]
  response: readonly unknown[]
  /**
   * For each call of the sample, the index in `response` of the message with its answer. Two calls have the same index if
   * the second resumed a truncated answer and the harness joined both.
   */
  answers: readonly number[]
  tools: readonly unknown[] | null
}

/**
 * A training sample: one token sequence with mask and log probabilities. All arrays have the length of `ids`. Typed arrays:
 * exporters create lists of numbers if their format needs them.
 */
export interface Sample {
  /** `<session id>/<number>`, from 0 in the order of the session's samples. */
  id: string
  sessionId: string
  builder: string
  label: Label
  ids: Int32Array
  /** Number of leading tokens that form the prompt; the rest is the response. */
  promptLength: number
  /** 1 for sampled tokens to train, else 0. */
  mask: Uint8Array
  /** NaN if the policy did not sample the token or the engine returned no log probability. */
  logprobs: Float32Array
  calls: readonly SampleCall[]
  /** Finish reason of the last trained call. */
  finishReason: FinishReason
  /** Weight within the session; the weights of a session add up to 1. */
  weight: number
  /** Leading tokens shared with an earlier sample of this session; absent if there are none. */
  shared?: { with: string; length: number }
  /** Trained tokens whose context differs from the engine's prompt. 0 without `splice`. */
  mismatchedTokens: number
  /** Computes the origin of every token, without gaps from 0. */
  spans(): readonly Span[]
  /** Parses the messages from the recorded requests, which are most of a session's bytes. */
  messages(): SampleMessages
  /** Absent if not graded; never 0 for a missing grade. */
  reward?: number
  components?: Readonly<Record<string, number>>
  /** Absent unless requested and graded. */
  advantage?: number
  /** Samples of one group solve the same task; absent if the session has no group. */
  group?: string
}

/** Sampled tokens that no sample trains, and the reason. */
export interface Exclusion {
  turnId: string
  /** Absent for a turn without an answer. */
  choice?: number
  tokens: number
  reason: ExclusionReason
  /** Explanation for people. */
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
