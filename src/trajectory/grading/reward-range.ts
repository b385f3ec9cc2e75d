import * as z from 'zod'
import { RolloutError } from '../../model/failure.ts'
import type { EvalResult } from '../../model/reward.ts'

/** Lowest and highest reward of an evaluator. */
export type RewardRange = readonly [lowest: number, highest: number]

/** Default range. */
export const USUAL_RANGE: RewardRange = [0, 1]

export const RewardRangeSetting = z
  .tuple([z.number(), z.number()])
  .refine(([lowest, highest]) => lowest < highest, 'must be [lowest, highest]')

export const rewardRange = RewardRangeSetting.default([0, 1]).describe(
  'Lowest and highest reward. Rewards outside are rejected. An agent whose files cannot be graded gets the lowest reward',
)

/** Describes a reward outside of the range; undefined if all are inside. Components have no range. */
export function rangeProblem(
  { outcome_reward: outcome, trace_rewards: traces }: Pick<EvalResult, 'outcome_reward' | 'trace_rewards'>,
  [lowest, highest]: RewardRange,
): string | undefined {
  const given = [outcome, ...(traces ?? [])]
  // Negated, because every comparison with NaN is false.
  const outside = given.find((reward) => reward != null && !(reward >= lowest && reward <= highest))
  return outside === undefined ? undefined : `${outside} is outside of the declared range, ${lowest} to ${highest}`
}

/** Throws `evaluator.crashed` for rewards outside of the range. */
export function assertInRange(result: EvalResult, range: RewardRange, from: string): void {
  const problem = rangeProblem(result, range)
  if (problem !== undefined) throw new RolloutError('evaluator.crashed', `${from}: the reward ${problem}`)
}
