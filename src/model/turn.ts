import * as z from 'zod'
import type { Failure } from './failure.ts'
import type { AssistantMessage, Message, Tool, ToolChoice } from './message.ts'
import type { TurnSampling } from './turn-sampling.ts'

/** Why a choice ended. `abort` and `cut`: not by the policy. */
export const FinishReason = z.enum(['stop', 'length', 'tool-calls', 'content-filter', 'abort', 'cut', 'other'])
export type FinishReason = z.infer<typeof FinishReason>

/**
 * Exactness of the token ids of a turn. `exact`: the engine reported every id that it read and sampled, and the counts agree.
 * By default only `exact` turns are trained.
 */
export const Exactness = z.enum(['exact', 'inferred', 'text-only'])
export type Exactness = z.infer<typeof Exactness>

/**
 * Distribution of log probabilities. `raw`: the model's; `tempered`: after division by the temperature, before top-p and
 * top-k, so equal to `raw` at temperature 1; `processed`: the distribution that was sampled, after temperature, top-p, top-k
 * and min-p; `grammar`: only over the tokens that a grammar permitted, so a trainer cannot compute them from the tokens.
 */
export const LogprobMode = z.enum(['raw', 'tempered', 'processed', 'grammar'])
export type LogprobMode = z.infer<typeof LogprobMode>

/**
 * How a request restricted sampling besides its parameters. `response-format`: the answer must be JSON. `tool-choice`: a tool
 * must be called. `strict-tools`: arguments must match their schema. Engines enforce these three by a grammar. `prefill`: the
 * last message is an assistant message, which an engine may continue.
 */
export const Steering = z.enum(['response-format', 'tool-choice', 'strict-tools', 'prefill'])
export type Steering = z.infer<typeof Steering>

/** Restrictions of a request that an engine enforces by a grammar, as they were sent to the engine. */
export interface Grammar {
  responseFormat?: 'json-object' | 'json-schema'
  /** A tool call is required, of any tool or of the named tool. */
  toolChoice?: 'required' | { name: string }
  /** Names of the tools with `strict`. */
  strictTools?: readonly string[]
}

/** Whether the harness received the whole answer. `unknown`: the gateway died before it could record that. */
export const Delivery = z.enum(['delivered', 'undelivered', 'unknown'])
export type Delivery = z.infer<typeof Delivery>

/** Token counts of the engine; absent if not reported. */
export const Usage = z.object({
  promptTokens: z.int(),
  completionTokens: z.int(),
  cachedTokens: z.int().optional(),
})
export type Usage = z.infer<typeof Usage>

/** Sampling parameters of the caller; absent: the engine's default. */
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

/** Required format of a text answer. */
export type ResponseFormat =
  | { type: 'text' }
  | { type: 'json-object' }
  | { type: 'json-schema'; name: string; schema: unknown; strict?: boolean }

/** The normalised request of one model call. */
export interface TurnRequest {
  dialect: string
  model: string
  messages: Message[]
  tools: Tool[]
  /** Absent: the engine's default, which is `auto` when there are tools. */
  toolChoice?: ToolChoice
  parallelToolCalls?: boolean
  responseFormat?: ResponseFormat
  /** Set if the caller requested a summary by an API call, and the gateway wrote the instruction. */
  purpose?: 'compaction'
  /** Requested reasoning and effort; absent: the engine's default. */
  reasoning?: { enabled: boolean; effort?: string }
  sampling: Sampling
  /** Parameters of the task that replace those of the caller. */
  forcedSampling?: Partial<Sampling>
  stream: boolean
  /** Whether the caller requested a usage frame at the end of a stream. */
  streamUsage: boolean
  /** Whether the caller requested log probabilities. The gateway captures them in any case. */
  logprobs: boolean
  /** The original body, so that an upstream of the same wire format can relay unknown fields. */
  wire: { api: string; text: string; body: Readonly<Record<string, unknown>> }
}

/**
 * One sampled answer. `ids` and `logprobs` have the same length; NaN is a log probability that the engine did not
 * return.
 */
export interface Choice {
  index: number
  message: AssistantMessage
  finishReason: FinishReason
  /** The stop string or id that ended it, if the engine reports it. */
  stopReason?: string | number
  ids: Int32Array
  logprobs: Float32Array
  /** Weight versions by first token, ascending; absent if the gateway knows no version. */
  weightSpans?: WeightSpan[]
}

/** Weight version of a token. */
export interface VersionRange {
  /** The version; the oldest possible one if `newest` is present. */
  version: string
  /** The newest possible version, if a change of weights makes the version uncertain. */
  newest?: string
}

export interface WeightSpan extends VersionRange {
  /** Index of the first token. */
  from: number
}

/** One recorded model call. */
export interface Turn {
  id: string
  sessionId: string
  /** Position by start within the session, from 0. */
  index: number
  dialect: string
  /** Unix milliseconds. */
  startedAt: number
  /** Arrival of the first sampled token; absent if there was none. */
  firstTokenAt?: number
  /** Absent while in flight, or if the gateway died during the call. */
  endedAt?: number
  model: string
  stream: boolean
  /** The request body as the harness sent it. */
  request: string
  /** Request headers in lower case, without credentials and transport headers. */
  headers: Readonly<Record<string, string>>
  /** The earlier turn that this one repeats, if the harness marked it as a retry. */
  retryOf?: string
  /** Values that the gateway set or changed in the request to the engine. */
  forced: Readonly<Record<string, unknown>>
  /** How the request steered the sampling; absent if it did not, and in records of earlier versions. */
  steeredBy?: readonly Steering[]
  /** Paths of request fields that were not sent to the engine; absent if there are none. */
  droppedFields?: readonly string[]
  /** Absent if the engine did not start to answer, and in records of earlier versions. */
  sampling?: TurnSampling
  response?: TurnResponse
  failure?: Failure
  delivery: Delivery
}

export interface TurnResponse {
  id: string
  model: string
  created: number
  /** Empty if the engine did not report them. */
  promptIds: Int32Array
  choices: Choice[]
  usage?: Usage
  /** Exactness of the token ids. */
  grade: Exactness
  /** Why the ids are not `exact`; empty if they are. */
  gradeReasons: string[]
  /** Oldest possible weight version of the first sampled token. `weightSpans` of a choice contain changes. */
  weightVersion?: string
  /** Absent if unknown. */
  logprobMode?: LogprobMode
}

export const TurnOutcome = z.enum(['answered', 'failed', 'partial', 'unfinished'])
export type TurnOutcome = z.infer<typeof TurnOutcome>

/** Returns the outcome of a turn. `unfinished`: the log contains no end. */
export function outcomeOf(turn: Pick<Turn, 'response' | 'failure' | 'endedAt'>): TurnOutcome {
  if (turn.endedAt === undefined) return 'unfinished'
  if (turn.failure === undefined) return 'answered'
  return turn.response === undefined || turn.response.choices.length === 0 ? 'failed' : 'partial'
}
