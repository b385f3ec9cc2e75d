import type { LowRank, LowRankGradient } from './low-rank.ts'

export interface AdamOptions {
  learningRate: number
  beta1: number
  beta2: number
  /**
   * Far above the gradients of vocabulary entries that were never sampled. With the usual 1e-8, Adam would scale them up and
   * move all entries equally fast.
   */
  epsilon: number
}

/** Adam, ascending: `step` returns weights with a larger objective. */
export class Adam {
  readonly #options: AdamOptions
  readonly #moments = new Map<keyof LowRankGradient, { first: Float64Array; second: Float64Array }>()
  #steps = 0

  constructor(options: AdamOptions) {
    this.#options = options
  }

  /** Returns new weights; the given ones stay as they are. */
  step(weights: LowRank, gradient: LowRankGradient): LowRank {
    this.#steps += 1
    return {
      rank: weights.rank,
      down: this.#move('down', weights.down, gradient.down),
      up: this.#move('up', weights.up, gradient.up),
    }
  }

  #move(name: keyof LowRankGradient, values: Float32Array, gradient: Float64Array): Float32Array {
    const { learningRate, beta1, beta2, epsilon } = this.#options
    const zeros = () => new Float64Array(values.length)
    const { first, second } = this.#moments.get(name) ?? { first: zeros(), second: zeros() }
    this.#moments.set(name, { first, second })
    const [correction1, correction2] = [1 - beta1 ** this.#steps, 1 - beta2 ** this.#steps]
    return values.map((value, i) => {
      first[i] = beta1 * first[i]! + (1 - beta1) * gradient[i]!
      second[i] = beta2 * second[i]! + (1 - beta2) * gradient[i]! ** 2
      return value + (learningRate * first[i]) / correction1 / (Math.sqrt(second[i] / correction2) + epsilon)
    })
  }
}
