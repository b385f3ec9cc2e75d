import type { SampledToken, SamplingParams } from '../policies/policy.ts'
import type { Random } from './random.ts'

/** Sampling parameters that choose a token. */
export type SamplerParams = Omit<SamplingParams, 'seed' | 'maxTokens' | 'stop' | 'ignoreEos' | 'n'>

/** Earlier tokens, for penalties and `minTokens`. */
export interface TokenHistory {
  readonly promptIds: ReadonlySet<number>
  /** Number of times each id was sampled. */
  readonly counts: ReadonlyMap<number, number>
  readonly length: number
  /** End-of-turn id, which like the stop ids may not be sampled before `minTokens`. */
  readonly eosId: number
}

/** vLLM's limit: lower temperatures are greedy. */
const GREEDY_BELOW = 1e-5

/**
 * Draws the next token in vLLM's order: grammar; logit bias, `minTokens`, penalties; temperature; minP, topK, topP. Reports
 * the raw distribution of the logits that the grammar left, whatever the other parameters are.
 */
export function sampleToken(
  modelLogits: Float32Array,
  params: SamplerParams,
  history: TokenHistory,
  random: Random,
): SampledToken {
  const logits = history.length === 0 ? maskLogits(modelLogits, params.firstIds) : modelLogits
  const scores = adjustLogits(logits, params, history)
  const id = params.temperature < GREEDY_BELOW ? indexOfLargest(scores) : draw(scores, params, random)
  const logNormaliser = logSumExp(logits)
  return {
    id,
    logprob: Math.fround(logits[id]! - logNormaliser),
    rank: rankOf(logits, id),
    top: largest(logits, params.topLogprobs).map((top) => ({
      id: top,
      logprob: Math.fround(logits[top]! - logNormaliser),
    })),
  }
}

/** Natural logarithm of the sum of exponentials. A logit minus this value is its log probability. */
export function logSumExp(logits: Float32Array): number {
  const largestLogit = logits[indexOfLargest(logits)]!
  let sum = 0
  for (let id = 0; id < logits.length; id++) sum += Math.exp(logits[id]! - largestLogit)
  return largestLogit + Math.log(sum)
}

function maskLogits(logits: Float32Array, permitted: readonly number[] | undefined): Float32Array {
  if (permitted === undefined) return logits
  const masked = new Float32Array(logits.length).fill(-Infinity)
  for (const id of permitted) masked[id] = logits[id]!
  return masked
}

function adjustLogits(logits: Float32Array, params: SamplerParams, history: TokenHistory): Float32Array {
  const scores = Float32Array.from(logits)
  for (const [id, bias] of params.logitBias) if (id < scores.length) scores[id]! += bias
  if (history.length < params.minTokens)
    for (const id of [history.eosId, ...params.stopTokenIds]) scores[id] = -Infinity
  applyPenalties(scores, params, history)
  // If everything is forbidden, nothing could be drawn, so the restrictions are ignored.
  return scores[indexOfLargest(scores)] === -Infinity ? logits : scores
}

function applyPenalties(scores: Float32Array, params: SamplerParams, { promptIds, counts }: TokenHistory): void {
  const { repetitionPenalty, presencePenalty, frequencyPenalty } = params
  if (repetitionPenalty !== 1) {
    for (const id of new Set([...promptIds, ...counts.keys()])) {
      const score = scores[id]!
      scores[id] = score > 0 ? score / repetitionPenalty : score * repetitionPenalty
    }
  }
  for (const [id, count] of counts) scores[id]! -= frequencyPenalty * count + presencePenalty
}

function draw(scores: Float32Array, params: SamplerParams, random: Random): number {
  const weights = toWeights(scores, params.temperature)
  // The largest weight is 1, so minP, a share of the largest, is the limit itself.
  if (params.minP > 0) keepFrom(weights, weights, params.minP)
  // Compares scores instead of weights: at a huge temperature all weights are equal.
  if (params.topK > 0 && params.topK < scores.length) keepFrom(weights, scores, kthLargest(scores, params.topK))
  if (params.topP < 1) keepNucleus(weights, params.topP)
  return pick(weights, random())
}

function toWeights(scores: Float32Array, temperature: number): Float64Array {
  const largestScore = Math.min(scores[indexOfLargest(scores)]!, Number.MAX_VALUE)
  const weights = new Float64Array(scores.length)
  for (let id = 0; id < scores.length; id++) {
    weights[id] = Math.exp((Math.min(scores[id]!, Number.MAX_VALUE) - largestScore) / temperature)
  }
  return weights
}

function keepFrom(weights: Float64Array, values: Float32Array | Float64Array, limit: number): void {
  for (let id = 0; id < weights.length; id++) if (!(values[id]! >= limit)) weights[id] = 0
}

/** Keeps the likeliest tokens up to `topP` of the mass: removes the least likely tokens that fit in the rest. */
function keepNucleus(weights: Float64Array, topP: number): void {
  let total = 0
  for (const weight of weights) total += weight
  const allowance = (1 - topP) * total
  // All tokens below this fit in the rest together, so only the others must be sorted.
  const surelyOut = allowance / weights.length
  const candidates: number[] = []
  let dropped = 0
  for (let id = 0; id < weights.length; id++) {
    if (weights[id]! >= surelyOut && weights[id]! > 0) candidates.push(id)
    else {
      dropped += weights[id]!
      weights[id] = 0
    }
  }
  candidates.sort((a, b) => weights[a]! - weights[b]!)
  candidates.pop()
  for (const id of candidates) {
    dropped += weights[id]!
    if (dropped > allowance) return
    weights[id] = 0
  }
}

function pick(weights: Float64Array, uniform: number): number {
  let total = 0
  for (const weight of weights) total += weight
  let left = uniform * total
  let last = 0
  for (let id = 0; id < weights.length; id++) {
    if (weights[id] === 0) continue
    left -= weights[id]!
    if (left < 0) return id
    last = id
  }
  // Rounding can leave a remainder behind the last weight.
  return last
}

function indexOfLargest(values: Float32Array): number {
  let best = 0
  for (let id = 1; id < values.length; id++) if (values[id]! > values[best]!) best = id
  return best
}

/** Quickselect: ten times faster than sorting, which would take as long as the model. */
function kthLargest(values: Float32Array, k: number): number {
  const items = values.slice()
  const wanted = items.length - k
  let [low, high] = [0, items.length - 1]
  while (low < high) {
    const pivot = items[(low + high) >>> 1]!
    let [left, right] = [low, high]
    while (left <= right) {
      while (items[left]! < pivot) left++
      while (items[right]! > pivot) right--
      if (left > right) break
      const item = items[left]!
      items[left++] = items[right]!
      items[right--] = item
    }
    if (wanted <= right) high = right
    else if (wanted >= left) low = left
    else break
  }
  return items[wanted]!
}

function rankOf(logits: Float32Array, id: number): number {
  const own = logits[id]!
  let rank = -1
  for (let other = 0; other < logits.length; other++) if (logits[other]! >= own) rank++
  return rank
}

/** Returns the ids of the largest values in descending order, equal values by id; -1 returns all. */
function largest(values: Float32Array, count: number): number[] {
  if (count === 0) return []
  const wanted = count < 0 ? values.length : Math.min(count, values.length)
  const limit = kthLargest(values, wanted)
  const ids: number[] = []
  for (let id = 0; id < values.length; id++) if (values[id]! >= limit) ids.push(id)
  return ids.toSorted((a, b) => values[b]! - values[a]! || a - b).slice(0, wanted)
}
