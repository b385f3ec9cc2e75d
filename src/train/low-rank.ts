/**
 * The trained weights: a low-rank update of the output layer of a frozen model. The logits of a token with the final hidden
 * state `h` become `logits + up · (down · h)`.
 */
export interface LowRank {
  readonly rank: number
  /** [rank, hidden size] */
  readonly down: Float32Array
  /** [rank, vocabulary size] */
  readonly up: Float32Array
}

/** Sizes of the frozen model. */
export interface HeadShape {
  hiddenSize: number
  vocabularySize: number
}

/**
 * Initial weights as in LoRA: `up` is zero, so the policy starts as the frozen model; `down` is random with a variance of
 * 1 / hidden size.
 */
export function createLowRank(rank: number, { hiddenSize, vocabularySize }: HeadShape, random: () => number): LowRank {
  const scale = 1 / Math.sqrt(hiddenSize)
  return {
    rank,
    down: Float32Array.from({ length: rank * hiddenSize }, () => scale * drawNormal(random)),
    up: new Float32Array(rank * vocabularySize),
  }
}

/** What the frozen model predicted before one token. */
export interface Prediction {
  logits: Float32Array
  hidden: Float32Array
}

/** One token under the trained weights. */
export interface TokenForward {
  /** `down · hidden`: one value for each rank. */
  products: Float64Array
  /** Probability of every vocabulary entry. */
  probabilities: Float64Array
  logprob: number
}

/** Computes the distribution of one token and the log probability of `id` in it. */
export function forward(weights: LowRank, { logits, hidden }: Prediction, id: number): TokenForward {
  const size = logits.length
  const products = project(weights, hidden)
  // The engine adds the rows in this order in single precision; the same order gives the same logits.
  const scores = logits.slice()
  for (let row = 0; row < weights.rank; row++) {
    const product = products[row]!
    const offset = row * size
    for (let entry = 0; entry < size; entry++) scores[entry]! += product * weights.up[offset + entry]!
  }
  let largest = -Infinity
  for (let entry = 0; entry < size; entry++) if (scores[entry]! > largest) largest = scores[entry]!
  const probabilities = new Float64Array(size)
  let sum = 0
  for (let entry = 0; entry < size; entry++) sum += probabilities[entry] = Math.exp(scores[entry]! - largest)
  for (let entry = 0; entry < size; entry++) probabilities[entry]! /= sum
  return { products, probabilities, logprob: scores[id]! - largest - Math.log(sum) }
}

/** Gradient of an objective with respect to the weights. */
export interface LowRankGradient {
  down: Float64Array
  up: Float64Array
}

export function zeroGradient({ down, up }: LowRank): LowRankGradient {
  return { down: new Float64Array(down.length), up: new Float64Array(up.length) }
}

/** Adds `factor` times the gradient of `log p(id)` to `gradient`. */
export function addLogprobGradient(
  gradient: LowRankGradient,
  weights: LowRank,
  { hidden }: Prediction,
  { token, id, factor }: { token: TokenForward; id: number; factor: number },
): void {
  const { products, probabilities } = token
  const [size, hiddenSize] = [probabilities.length, hidden.length]
  for (let row = 0; row < weights.rank; row++) {
    const offset = row * size
    const scaled = factor * products[row]!
    // d log p(id) / d logits = onehot(id) - p
    let back = weights.up[offset + id]!
    for (let entry = 0; entry < size; entry++) {
      const probability = probabilities[entry]!
      back -= probability * weights.up[offset + entry]!
      gradient.up[offset + entry]! -= scaled * probability
    }
    gradient.up[offset + id]! += scaled
    const backFactor = factor * back
    for (let i = 0; i < hiddenSize; i++) gradient.down[row * hiddenSize + i]! += backFactor * hidden[i]!
  }
}

function project({ rank, down }: LowRank, hidden: Float32Array): Float64Array {
  const products = new Float64Array(rank)
  for (let row = 0; row < rank; row++) {
    let product = 0
    for (let i = 0; i < hidden.length; i++) product += down[row * hidden.length + i]! * hidden[i]!
    products[row] = product
  }
  return products
}

/** Box-Muller. */
function drawNormal(random: () => number): number {
  return Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random())
}
