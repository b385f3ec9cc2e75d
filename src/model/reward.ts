import * as z from 'zod'
import { arrayOf, recordOf } from '../lib/json/list-of.ts'

/** A finite number: NaN and infinities would poison a whole batch, and booleans are a mistake worth naming. */
const RewardValue = z.number().refine(Number.isFinite, 'must be finite')

/** What an evaluator says of a session. No reward is not the same as a reward of zero. */
export const EvalResult = z.object({
  outcome_reward: RewardValue.nullish(),
  /** One per trace, in trace order; null leaves that trace to the outcome reward. */
  trace_rewards: arrayOf(RewardValue.nullable()).nullish(),
  /** What the outcome is made of, by name; ours. */
  components: recordOf(RewardValue).nullish(),
  metadata: z.record(z.string(), z.unknown()).default({}),
})
export type EvalResult = z.infer<typeof EvalResult>
