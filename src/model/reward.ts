import * as z from 'zod'
import { arrayOf, recordOf } from '../lib/json/list-of.ts'

/** A finite number: NaN and infinities would corrupt a whole batch. */
const RewardValue = z.number().refine(Number.isFinite, 'must be finite')

/** Result of an evaluator. An absent reward is not a reward of zero. */
export const EvalResult = z.object({
  outcome_reward: RewardValue.nullish(),
  /** One reward per trace, in trace order; null: the outcome reward applies. */
  trace_rewards: arrayOf(RewardValue.nullable()).nullish(),
  /** Parts of the outcome by name. Not in NVIDIA Polar. */
  components: recordOf(RewardValue).nullish(),
  metadata: z.record(z.string(), z.unknown()).default({}),
})
export type EvalResult = z.infer<typeof EvalResult>
