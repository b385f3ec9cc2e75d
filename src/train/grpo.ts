import { addLogprobGradient, forward, zeroGradient } from './low-rank.ts'
import type { LowRank, LowRankGradient, Prediction } from './low-rank.ts'

/** A sampled token as the step sees it. */
export interface TrainToken extends Prediction {
  id: number
  /** Log probability under the weights that sampled the token, as captured. */
  logprob: number
  /** Group-relative advantage of its session. */
  advantage: number
}

export interface GrpoStats {
  /** Mean of the clipped objective over tokens. */
  objective: number
  /** Share of tokens whose ratio is outside the clip range on the side that stops their gradient. */
  clipped: number
  /** Mean and largest importance ratio, current weights to sampling weights. */
  meanRatio: number
  maxRatio: number
  /** Mean of `ratio - 1 - log ratio`, an estimate of the divergence from the sampling weights. */
  divergence: number
}

/**
 * The objective of GRPO, and its gradient. For each token with the ratio
 *
 *     r = p(token | current weights) / p(token | weights that sampled it)
 *
 * the objective is `min(r A, clip(r, 1 - clip, 1 + clip) A)`, averaged over all tokens of the batch. The denominator is the
 * captured log probability, so tokens that different versions sampled need no special treatment. No KL term.
 */
export function grpoObjective(
  weights: LowRank,
  tokens: readonly TrainToken[],
  clip: number,
): { gradient: LowRankGradient; stats: GrpoStats } {
  const gradient = zeroGradient(weights)
  let [objective, clipped, ratios, maxRatio, divergence] = [0, 0, 0, 0, 0]
  for (const trained of tokens) {
    const { id, advantage } = trained
    const token = forward(weights, trained, id)
    const logRatio = token.logprob - trained.logprob
    const ratio = Math.exp(logRatio)
    const isClipped = advantage > 0 ? ratio > 1 + clip : ratio < 1 - clip
    objective += (isClipped ? (advantage > 0 ? 1 + clip : 1 - clip) : ratio) * advantage
    clipped += isClipped ? 1 : 0
    ratios += ratio
    maxRatio = Math.max(maxRatio, ratio)
    divergence += ratio - 1 - logRatio
    // d (r A) / d weights = r A · d log p / d weights; a clipped token has no gradient.
    if (isClipped || advantage === 0) continue
    addLogprobGradient(gradient, weights, trained, { token, id, factor: (ratio * advantage) / tokens.length })
  }
  const mean = (sum: number) => (tokens.length === 0 ? 0 : sum / tokens.length)
  return {
    gradient,
    stats: {
      objective: mean(objective),
      clipped: mean(clipped),
      meanRatio: mean(ratios),
      maxRatio,
      divergence: mean(divergence),
    },
  }
}
