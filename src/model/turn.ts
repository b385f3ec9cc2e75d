import * as z from 'zod'
import type { Failure } from './failure.ts'
import type { AssistantMessage, Message, Tool, ToolChoice } from './message.ts'
import type { TurnSampling } from './turn-sampling.ts'

/** Why a choice ended. `abort` and `cut` are endings the policy did not choose. */
export const FinishReason = z.enum(['stop', 'length', 'tool-calls', 'content-filter', 'abort', 'cut', 'other'])
export type FinishReason = z.infer<typeof FinishReason>

/**
 * How far the token ids of a turn can be trusted. `exact`: the engine reported every id it read and sampled, and the
 * counts agree. Only `exact` turns are trained unless the user says otherwise.
 */
export const Exactness = z.enum(['exact', 'inferred', 'text-only'])
export type Exactness = z.infer<typeof Exactness>

/**
 * What a log probability is taken of. `raw`: the model's distribution; `tempered`: that divided by the temperature, so
 * equal to raw at temperature 1; `processed`: the distribution that was drawn from, after temperature, top-p and top-k.
 */
export const LogprobMode = z.enum(['raw', 'tempered', 'processed'])
export type LogprobMode = z.infer<typeof LogprobMode>

/**
 * How a request narrowed what the model could sample, beside its sampling parameters. `response-format`: the answer must be
 * JSON. `tool-choice`: a tool, or one named tool, must be called. `strict-tools`: arguments must fit their schema. Engines
 * enforce these three by a grammar. `prefill`: the last message is the assistant's own, which an engine may continue.
 */
export const Steering = z.enum(['response-format', 'tool-choice', 'strict-tools', 'prefill'])
export type Steering = z.infer<typeof Steering>

/** Whether the harness got the whole answer. `unknown`: the gateway died before it could tell. */
export const Delivery = z.enum(['delivered', 'undelivered', 'unknown'])
export type Delivery = z.infer<typeof Delivery>

/** Tokens as the engine counted them; absent means it did not say. */
export const Usage = z.object({
  promptTokens: z.int(),
  completionTokens: z.int(),
  cachedTokens: z.int().optional(),
})
export type Usage = z.infer<typeof Usage>

/** What the caller asked of sampling; absent leaves it to the engine. */
export interface Sampling {
  temperature?: number
  topP?: number
  topK?: number
  minP?: number
  seed?: number
  maxTokens?: number
  stop?: string[]
  presencePenalty?: number
  frequencyPenalty?: number
  n: number
}

/** The shape a text answer must have. */
export type ResponseFormat =
  | { type: 'text' }
  | { type: 'json-object' }
  | { type: 'json-schema'; name: string; schema: unknown; strict?: boolean }

/** One model call as asked for, in our own words. */
export interface TurnRequest {
  dialect: string
  model: string
  messages: Message[]
  tools: Tool[]
  /** Absent: the engine's default, which is `auto` when there are tools. */
  toolChoice?: ToolChoice
  parallelToolCalls?: boolean
  responseFormat?: ResponseFormat
  /** Present when the caller asked for a summary by the API itself, and the gateway wrote the instruction. */
  purpose?: 'compaction'
  /** Whether the caller wants the model to think, and how hard; absent leaves it to the engine. */
  reasoning?: { enabled: boolean; effort?: string }
  sampling: Sampling
  /** What takes the place of the caller's own wishes: the trainer counts on it. */
  forcedSampling?: Partial<Sampling>
  stream: boolean
  /** Whether the caller wants a usage frame at the end of a stream. */
  streamUsage: boolean
  /** Whether the caller itself asked for log probabilities; ours are captured in any case. */
  logprobs: boolean
  /** The body as it came, so that an upstream of the same wire can pass on what we have no word for. */
  wire: { api: string; text: string; body: Readonly<Record<string, unknown>> }
}

/** One sampled answer. `ids` and `logprobs` have the same length; NaN is a log probability the engine did not give. */
export interface Choice {
  index: number
  message: AssistantMessage
  finishReason: FinishReason
  /** The stop string or id that ended it, where the engine says. */
  stopReason?: string | number
  ids: Int32Array
  logprobs: Float32Array
  /** Which weights sampled from which token on, in growing order; absent when the gateway was never told a version. */
  weightSpans?: WeightSpan[]
}

/** The weights that sampled a token, as far as they are known. */
export interface VersionRange {
  /** The version; the oldest possible one where `newest` is present. */
  version: string
  /** Present when a change of weights makes the version uncertain: the newest possible one. */
  newest?: string
}

export interface WeightSpan extends VersionRange {
  /** Index of the first token. */
  from: number
}

/** One model call with all that is known of it afterwards. */
export interface Turn {
  id: string
  sessionId: string
  /** Position by start within the session, from 0. */
  index: number
  dialect: string
  /** Unix milliseconds. */
  startedAt: number
  /** When the first sampled token arrived; absent when none did. */
  firstTokenAt?: number
  /** Absent while in flight, or when the gateway died during the call. */
  endedAt?: number
  model: string
  stream: boolean
  /** The request body as the harness sent it. */
  request: string
  /** Its headers, names in lower case, without keys and what only concerns the transport. */
  headers: Readonly<Record<string, string>>
  /** The earlier turn this one repeats, where the harness said that it tries again. */
  retryOf?: string
  /** What the gateway set or changed on the way to the engine. */
  forced: Readonly<Record<string, unknown>>
  /** How the request steered the sampling; absent when it did not, and in records of earlier versions. */
  steeredBy?: readonly Steering[]
  /** Paths of fields that the harness sent and the engine did not get; absent when there are none. */
  droppedFields?: readonly string[]
  /** Absent when the engine never began to answer, and in records of earlier versions. */
  sampling?: TurnSampling
  response?: TurnResponse
  failure?: Failure
  delivery: Delivery
}

export interface TurnResponse {
  id: string
  model: string
  created: number
  /** Empty when the engine did not say. */
  promptIds: Int32Array
  choices: Choice[]
  usage?: Usage
  grade: Exactness
  /** Why the grade is not `exact`; empty when it is. */
  gradeReasons: string[]
  /** Weights of the first sampled token, the oldest possible ones; `weightSpans` of a choice say whether they changed. */
  weightVersion?: string
  /** Absent when nobody knows. */
  logprobMode?: LogprobMode
}

export const TurnOutcome = z.enum(['answered', 'failed', 'partial', 'unfinished'])
export type TurnOutcome = z.infer<typeof TurnOutcome>

/** In a word how a turn went. `unfinished`: no outcome was ever recorded. */
export function outcomeOf(turn: Pick<Turn, 'response' | 'failure' | 'endedAt'>): TurnOutcome {
  if (turn.endedAt === undefined) return 'unfinished'
  if (turn.failure === undefined) return 'answered'
  return turn.response === undefined || turn.response.choices.length === 0 ? 'failed' : 'partial'
}
