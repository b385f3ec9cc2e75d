/**
 * Trainable part of the weights. The model itself is frozen: for a token with the final hidden state `h`, its logits become
 * `logits + bias + up · (down · h)`. Absent parts are zero.
 */
export interface OutputWeights {
  /** One value for each vocabulary entry. */
  readonly bias?: Float32Array | undefined
  readonly lowRank?: LowRank | undefined
}

/** A low-rank update of the output layer, with fixed products of `rank` rows. */
export interface LowRank {
  readonly rank: number
  /** [rank, hidden size] */
  readonly down: Float32Array
  /** [rank, vocabulary size] */
  readonly up: Float32Array
}

/** Returns the logits of one token under `weights`; the same array without weights. */
export function applyOutputWeights(
  logits: Float32Array,
  hidden: Float32Array,
  { bias, lowRank }: OutputWeights,
): Float32Array {
  if (bias === undefined && lowRank === undefined) return logits
  const result = logits.slice()
  if (bias !== undefined) for (let id = 0; id < result.length; id++) result[id]! += bias[id]!
  if (lowRank !== undefined) addLowRank(result, hidden, lowRank)
  return result
}

/** Adds `up · (down · hidden)` to `logits`. The order of the additions is fixed: a trainer that repeats it gets the same bits. */
export function addLowRank(logits: Float32Array, hidden: Float32Array, { rank, down, up }: LowRank): void {
  for (let row = 0; row < rank; row++) {
    let product = 0
    for (let i = 0; i < hidden.length; i++) product += down[row * hidden.length + i]! * hidden[i]!
    const offset = row * logits.length
    for (let id = 0; id < logits.length; id++) logits[id]! += product * up[offset + id]!
  }
}

/** Describes why `weights` do not fit a model; undefined if they do. */
export function findWeightsProblem(
  { bias, lowRank }: OutputWeights,
  shape: { vocabularySize: number; hiddenSize: number },
): string | undefined {
  const { vocabularySize, hiddenSize } = shape
  if (bias !== undefined && !isVector(bias, vocabularySize))
    return `An output bias is ${vocabularySize} finite numbers.`
  if (lowRank === undefined) return undefined
  const { rank, down, up } = lowRank
  if (isVector(down, rank * hiddenSize) && isVector(up, rank * vocabularySize)) return undefined
  return `A low-rank update of rank ${rank} is ${rank * hiddenSize} and ${rank * vocabularySize} finite numbers.`
}

function isVector(values: Float32Array, length: number): boolean {
  return values.length === length && values.every(Number.isFinite)
}
