import { badRequest } from './errors.ts'
import type { SamplingParams } from './policies/policy.ts'
import type { SamplingFields } from './wire-schema.ts'

/** Sampling defaults of the server, as vLLM reads them from a model's `generation_config.json`. */
export type GenerationConfig = Partial<
  Record<'temperature' | 'top_p' | 'top_k' | 'min_p' | 'repetition_penalty', number>
>

export interface SamplingLimits {
  vocabularySize: number
  /** Maximum number of alternatives per request; -1 is the whole vocabulary. */
  maxLogprobs: number
}

/** Maximum number of choices per request; vLLM's own limit is 16384. */
const MAX_CHOICES = 256
/** Lower temperatures are greedy, as in vLLM. */
const GREEDY_BELOW = 1e-5

/** Converts fields to parameters with vLLM's defaults. Rejects values out of range with vLLM's messages. */
export function toSamplingParams(
  fields: SamplingFields,
  resolved: { maxTokens: number; topLogprobs: number | undefined; firstIds?: readonly number[] },
  limits: SamplingLimits,
  defaults: GenerationConfig = {},
): SamplingParams {
  refuseUnsupported(fields)
  const params: SamplingParams = {
    temperature: fields.temperature ?? defaults.temperature ?? 1,
    topP: fields.top_p ?? defaults.top_p ?? 1,
    topK: fields.top_k ?? defaults.top_k ?? 0,
    minP: fields.min_p ?? defaults.min_p ?? 0,
    repetitionPenalty: fields.repetition_penalty ?? defaults.repetition_penalty ?? 1,
    presencePenalty: fields.presence_penalty ?? 0,
    frequencyPenalty: fields.frequency_penalty ?? 0,
    logitBias: toLogitBias(fields.logit_bias ?? {}, limits.vocabularySize),
    ...(resolved.firstIds === undefined ? {} : { firstIds: resolved.firstIds }),
    ...(fields.seed == null ? {} : { seed: fields.seed }),
    maxTokens: resolved.maxTokens,
    minTokens: fields.min_tokens ?? 0,
    stop: typeof fields.stop === 'string' ? [fields.stop] : (fields.stop ?? []),
    stopTokenIds: fields.stop_token_ids ?? [],
    ignoreEos: fields.ignore_eos ?? false,
    n: fields.n ?? 1,
    topLogprobs: resolved.topLogprobs ?? 0,
  }
  checkRanges(params, limits)
  if (params.temperature >= GREEDY_BELOW) return params
  return { ...params, temperature: 0, topP: 1, topK: 0, minP: 0 }
}

function checkRanges(params: SamplingParams, limits: SamplingLimits): void {
  const { n, presencePenalty, frequencyPenalty, repetitionPenalty, temperature, topP, topK, minP } = params
  if (n < 1) throw badRequest(`n must be at least 1, got ${n}.`)
  if (n > MAX_CHOICES) throw badRequest(`n must be at most ${MAX_CHOICES}, got ${n}.`)
  if (Math.abs(presencePenalty) > 2) throw badRequest(`presence_penalty must be in [-2, 2], got ${presencePenalty}.`)
  if (Math.abs(frequencyPenalty) > 2) throw badRequest(`frequency_penalty must be in [-2, 2], got ${frequencyPenalty}.`)
  if (repetitionPenalty <= 0) {
    throw badRequest(`repetition_penalty must be greater than zero, got ${repetitionPenalty}.`)
  }
  if (temperature < 0) {
    throw badRequest(`temperature must be non-negative, got ${temperature}.`, 'temperature', temperature)
  }
  if (temperature > 2)
    throw badRequest(`temperature must be in [0, 2], got ${temperature}.`, 'temperature', temperature)
  if (topP <= 0 || topP > 1) throw badRequest(`top_p must be in (0, 1], got ${topP}.`, 'top_p', topP)
  if (topK < -1) throw badRequest(`top_k must be 0 (disable), or at least 1, got ${topK}.`)
  if (minP < 0 || minP > 1) throw badRequest(`min_p must be in [0, 1], got ${minP}.`)
  checkLengths(params)
  const { topLogprobs } = params
  const asked = topLogprobs === -1 ? limits.vocabularySize : topLogprobs
  const allowed = limits.maxLogprobs === -1 ? limits.vocabularySize : limits.maxLogprobs
  if (topLogprobs < -1) {
    throw badRequest(`logprobs must be non-negative or -1, got ${topLogprobs}.`, 'logprobs', topLogprobs)
  }
  if (asked > allowed) {
    throw badRequest(
      `Requested sample logprobs of ${asked}, which is greater than max allowed: ${allowed}`,
      'logprobs',
      asked,
    )
  }
  if (temperature < GREEDY_BELOW && n > 1) throw badRequest(`n must be 1 when using greedy sampling, got ${n}.`)
}

function checkLengths({ maxTokens, minTokens, stop }: SamplingParams): void {
  if (maxTokens < 1) throw badRequest(`max_tokens must be at least 1, got ${maxTokens}.`, 'max_tokens', maxTokens)
  if (minTokens < 0) throw badRequest(`min_tokens must be greater than or equal to 0, got ${minTokens}.`)
  if (minTokens > maxTokens) {
    throw badRequest(`min_tokens must be less than or equal to max_tokens=${maxTokens}, got ${minTokens}.`)
  }
  if (stop.includes('')) throw badRequest('stop cannot contain an empty string.')
}

function toLogitBias(wire: Readonly<Record<string, number>>, vocabularySize: number): Map<number, number> {
  const bias = new Map<number, number>()
  const invalid: string[] = []
  const outside: number[] = []
  for (const [key, value] of Object.entries(wire)) {
    const id = /^\s*[+-]?\d+\s*$/.test(key) ? Number(key) : undefined
    if (id === undefined) invalid.push(key)
    else if (id < 0 || id >= vocabularySize) outside.push(id)
    else bias.set(id, Math.min(100, Math.max(-100, value)))
  }
  if (invalid.length > 0) {
    throw badRequest(
      `logit_bias contains key(s) that cannot be converted to integer token IDs: ${JSON.stringify(invalid)}`,
      'logit_bias',
      invalid,
    )
  }
  if (outside.length > 0) {
    throw badRequest(
      `token_id(s) ${JSON.stringify(outside)} in logit_bias contain out-of-vocab token ids. Vocabulary size: ${vocabularySize}`,
      'logit_bias',
      outside,
    )
  }
  return bias
}

/**
 * Rejects requested features that would change sampling and that no policy supports. Accepts grammars, because harnesses send
 * them with many requests: grammar.ts enforces a small part of them.
 */
function refuseUnsupported(fields: SamplingFields): void {
  const asked: Readonly<Record<string, boolean>> = {
    use_beam_search: fields.use_beam_search === true,
    prompt_logprobs: fields.prompt_logprobs != null,
    logprob_token_ids: fields.logprob_token_ids != null,
    allowed_token_ids: fields.allowed_token_ids != null,
    bad_words: (fields.bad_words ?? []).length > 0,
    truncate_prompt_tokens: fields.truncate_prompt_tokens != null,
  }
  for (const [field, isAsked] of Object.entries(asked)) {
    if (isAsked) throw badRequest(`\`${field}\` is not supported by the tiny engine.`, field)
  }
}
