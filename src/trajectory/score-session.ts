import * as z from 'zod'
import { EvalResult } from '../model/reward.ts'
import type { Sample } from '../model/sample.ts'
import type { BuiltSession } from './build-session.ts'

/** What is known of a session's worth when it is exported. Absent rewards stay absent: they are not zeros. */
export const SessionScore = EvalResult.extend({
  session_id: z.string(),
  /** Sessions of one group answer the same task and are compared with each other. */
  group_id: z.string().nullish(),
})
export type SessionScore = z.infer<typeof SessionScore>

/**
 * How a session's reward is set against its group's. `grpo`: minus the mean. `rloo`: minus the mean of the others.
 * `grpo-trl`, `grpo-verl`: minus the mean, over the standard deviation of the sample (N - 1) plus the trainer's epsilon.
 * `grpo-std`: the same with the standard deviation of the population (N).
 */
export const AdvantageMethod = z.enum(['grpo', 'grpo-trl', 'grpo-verl', 'grpo-std', 'rloo'])
export type AdvantageMethod = z.infer<typeof AdvantageMethod>

/** A built session whose samples carry rewards. */
export interface ScoredSession {
  built: BuiltSession
  score?: SessionScore
  samples(): Iterable<Sample>
}

/** Each row gets its own reward if there is one, else the session's; and the session's advantage. */
export function scoreSession(built: BuiltSession, score?: SessionScore, advantage?: number): ScoredSession {
  return {
    built,
    ...(score === undefined ? {} : { score }),
    *samples() {
      let index = 0
      for (const sample of built.samples()) {
        const reward = score?.trace_rewards?.[index] ?? score?.outcome_reward
        yield {
          ...sample,
          ...(reward == null ? {} : { reward }),
          ...(score?.components == null ? {} : { components: score.components }),
          ...(score?.group_id == null ? {} : { group: score.group_id }),
          ...(advantage === undefined ? {} : { advantage }),
        }
        index += 1
      }
    },
  }
}

/**
 * One number a session, whatever its number of rows: a session that was split must not count more in its group's mean.
 * Sessions without a reward or a group, and groups of one where the others are asked for, get none.
 */
export function advantagesOf(scores: readonly SessionScore[], method: AdvantageMethod): Map<string, number> {
  const advantages = new Map<string, number>()
  const graded = scores.flatMap(({ session_id, group_id, outcome_reward }) =>
    outcome_reward == null || group_id == null ? [] : [{ id: session_id, group: group_id, reward: outcome_reward }],
  )
  for (const group of Map.groupBy(graded, (entry) => entry.group).values()) {
    const sum = group.reduce((total, { reward }) => total + reward, 0)
    const mean = sum / group.length
    const squares = group.reduce((total, { reward }) => total + (reward - mean) ** 2, 0)
    for (const { id, reward } of group) {
      const advantage = advantageOf(method, { reward, sum, mean, squares, size: group.length })
      if (advantage !== undefined) advantages.set(id, advantage)
    }
  }
  return advantages
}

/** Keep a group of equal rewards, which teaches nothing, at zero instead of 0/0. */
const EPSILON = 1e-6
const TRL_EPSILON = 1e-4

function advantageOf(
  method: AdvantageMethod,
  group: { reward: number; sum: number; mean: number; squares: number; size: number },
): number | undefined {
  const { reward, sum, mean, squares, size } = group
  switch (method) {
    case 'grpo':
      return reward - mean
    case 'grpo-trl':
      return size < 2 ? 0 : (reward - mean) / (Math.sqrt(squares / (size - 1)) + TRL_EPSILON)
    case 'grpo-verl':
      // For a group of one verl takes a mean of 0 and a deviation of 1.
      return size < 2 ? reward / (1 + EPSILON) : (reward - mean) / (Math.sqrt(squares / (size - 1)) + EPSILON)
    case 'grpo-std':
      return (reward - mean) / (Math.sqrt(squares / size) + EPSILON)
    case 'rloo':
      return size < 2 ? undefined : reward - (sum - reward) / (size - 1)
  }
}
