/** What an engine may be asked of sampling, in vLLM's meaning of each word. Absent fields have vLLM's defaults. */
export interface SamplingParams {
  /** 0 is greedy. */
  temperature: number
  topP: number
  /** 0 or -1: no limit. */
  topK: number
  minP: number
  repetitionPenalty: number
  presencePenalty: number
  frequencyPenalty: number
  logitBias: ReadonlyMap<number, number>
  /** Absent: drawn at random. Choice i of several uses seed + i. */
  seed?: number
  maxTokens: number
  minTokens: number
  stop: readonly string[]
  stopTokenIds: readonly number[]
  ignoreEos: boolean
  n: number
  /** How many alternatives to report beside the sampled token; -1 is the whole vocabulary. */
  topLogprobs: number
}

/** One conversation as it stood in the request body; absent when the caller sent token ids only. */
export interface Conversation {
  messages: readonly Readonly<Record<string, unknown>>[]
  tools: readonly Readonly<Record<string, unknown>>[]
}

export interface GenerationRequest {
  /** Unique within the engine. */
  id: string
  promptIds: Int32Array
  conversation?: Conversation
  sampling: SamplingParams
  signal: AbortSignal
}

export interface SampledToken {
  id: number
  /** Of the raw distribution: before temperature, penalties and filters, as vLLM's default `raw_logprobs`. */
  logprob: number
  /** 0-based place of the sampled token in the raw distribution, counted as vLLM's rank minus one. */
  rank: number
  /** The likeliest tokens in falling order, as many as were asked for. */
  top: readonly { id: number; logprob: number }[]
}

/** Something the engine should do wrong on purpose, so that callers can be tested against it. */
export type Fault =
  /** Answer with this status and vLLM's error body instead of generating. */
  | { kind: 'status'; status: number; message?: string; retryAfterSeconds?: number }
  /** Destroy the socket: before any header when `afterTokens` is absent, else after that many streamed tokens. */
  | { kind: 'reset'; afterTokens?: number }
  /** Say nothing for `ms`: before any header, or after that many streamed tokens; then go on. */
  | { kind: 'stall'; ms: number; afterTokens?: number }
  /** End the response cleanly after that many streamed tokens, without finish reason and without [DONE]. */
  | { kind: 'cut'; afterTokens: number }
  /** Send bytes that are not JSON: in place of the body, or as one event after that many streamed tokens. */
  | { kind: 'malformed'; afterTokens?: number }
  /** Leave out ids or log probabilities that were asked for. */
  | { kind: 'omit'; fields: readonly ('token_ids' | 'prompt_token_ids' | 'logprobs' | 'usage')[] }
  /** Drop one id from what is reported, so that counts no longer agree. */
  | { kind: 'wrong-length'; field: 'token_ids' | 'logprobs' }

export interface Generation {
  fault?: Fault
  /** Tokens of the prompt that needed no computing, known from the first token on; absent where nothing is cached. */
  readonly cachedTokens?: number
  /**
   * Tokens of one choice as they are sampled, an end-of-turn id included when the policy ends by itself. The caller stops
   * reading at `maxTokens`, at stop strings and at stop ids; leaving the loop early frees what the choice holds. Throws
   * the reason of the request's signal once that fires.
   */
  sample(choice: number): AsyncIterable<SampledToken>
}

/** What stands behind the wire: decides which token comes next. Knows no HTTP and no chat template. */
export interface Policy extends AsyncDisposable {
  readonly name: string
  start(request: GenerationRequest): Promise<Generation>
}
