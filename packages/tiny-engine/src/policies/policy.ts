/** Sampling parameters with vLLM's meaning. Absent fields have vLLM's defaults. */
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
  /** A grammar permits only these ids as the first token of an answer. Absent: no grammar. */
  firstIds?: readonly number[]
  /** Absent: drawn at random. Choice i of several uses seed + i. */
  seed?: number
  maxTokens: number
  minTokens: number
  stop: readonly string[]
  stopTokenIds: readonly number[]
  ignoreEos: boolean
  n: number
  /** Number of alternatives to report besides the sampled token; -1 is the whole vocabulary. */
  topLogprobs: number
}

/** The conversation of the request body; absent if the caller sent only token ids. */
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
  /**
   * Log probability in the raw distribution, before temperature, penalties and filters but after a grammar, as vLLM's
   * default `raw_logprobs`.
   */
  logprob: number
  /** 0-based rank of the sampled token in the raw distribution: vLLM's rank minus one. */
  rank: number
  /** The likeliest tokens in descending order, as many as requested. */
  top: readonly { id: number; logprob: number }[]
}

/** An intended fault of the engine, for tests of callers. */
export type Fault =
  /** Answer with this status and vLLM's error body instead of generating. */
  | { kind: 'status'; status: number; message?: string; retryAfterSeconds?: number }
  /** Destroy the socket: before any header when `afterTokens` is absent, else after that many streamed tokens. */
  | { kind: 'reset'; afterTokens?: number }
  /** Send nothing for `ms`: before any header, or after that many streamed tokens; then continue. */
  | { kind: 'stall'; ms: number; afterTokens?: number }
  /** End the response cleanly after that many streamed tokens, without finish reason and without [DONE]. */
  | { kind: 'cut'; afterTokens: number }
  /** Send bytes that are not JSON: instead of the body, or as one event after that many streamed tokens. */
  | { kind: 'malformed'; afterTokens?: number }
  /** Omit requested ids or log probabilities. */
  | { kind: 'omit'; fields: readonly ('token_ids' | 'prompt_token_ids' | 'logprobs' | 'usage')[] }
  /** Omit one reported id, so that counts disagree. */
  | { kind: 'wrong-length'; field: 'token_ids' | 'logprobs' }

export interface Generation {
  fault?: Fault
  /** Cached prompt tokens, known from the first token on; absent without a cache. */
  readonly cachedTokens?: number
  /**
   * Yields tokens of one choice, including an end-of-turn id if the policy ends on its own. The caller stops at `maxTokens`,
   * stop strings and stop ids; leaving the loop early frees the resources of the choice. Throws the reason of the request's
   * signal when it fires.
   */
  sample(choice: number): AsyncIterable<SampledToken>
}

/** Decides the next token. Independent of HTTP and of the chat template. */
export interface Policy extends AsyncDisposable {
  readonly name: string
  start(request: GenerationRequest): Promise<Generation>
}
