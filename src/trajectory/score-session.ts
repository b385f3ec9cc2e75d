import * as z from 'zod'
import { EvalResult } from '../model/reward.ts'
import type { Sample } from '../model/sample.ts'
import type { BuiltSession } from './build-session.ts'

/** The grade of a session at export. Absent rewards stay absent: they are not zeros. */
export const SessionScore = EvalResult.extend({
  session_id: z.string(),
  /** Sessions of one group solve the same task. Advantages compare them. */
  group_id: z.string().nullish(),
})
export type SessionScore = z.infer<typeof SessionScore>

/**
 * Advantage of a session's reward `r` within its group. `grpo`: `r - mean`. `rloo`: `r` minus the mean of the other rewards.
 * `grpo-trl`, `grpo-verl`: `(r - mean) / (std + epsilon)`, standard deviation of the sample (N - 1), the trainer's epsilon.
 * `grpo-std`: the same with the standard deviation of the population (N).
 */
export const AdvantageMethod = z.enum(['grpo', 'grpo-trl', 'grpo-verl', 'grpo-std', 'rloo'])
export type AdvantageMethod = z.infer<typeof AdvantageMethod>

/** A built session whose samples have rewards. */
export interface ScoredSession {
  built: BuiltSession
  score?: SessionScore
  samples(): Iterable<Sample>
}

/** Gives each sample its own reward, or else the session's reward, and the session's advantage. */
export function scoreSession(built: BuiltSession, score?: SessionScore, advantage?: number): ScoredSession {
  return {
    built,
    score,
    *samples() {
      let index = 0
      for (const sample of built.samples()) {
        const reward = score?.trace_rewards?.[index] ?? score?.outcome_reward
        yield {
          ...sample,
          reward: reward ?? undefined,
          components: score?.components ?? undefined,
          group: score?.group_id ?? undefined,
          advantage,
        }
        index += 1
      }
    },
  }
}

/**
 * Computes one advantage per session, whatever its number of samples: a split session must not count more in the mean of its
 * group. Sessions without a reward or a group get none, and with `rloo` neither does the only session of a group.
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

/** Keeps the advantages of a group with equal rewards at zero instead of 0/0. */
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
