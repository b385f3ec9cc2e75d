import * as z from 'zod'
import { EvalResult } from '../../model/reward.ts'
import { describeIssues } from './describe-issues.ts'

/** Far more than a reward with its components needs. */
export const REWARD_BYTES = 256 * 1024

/** What a program may say of a reward, besides a number alone. */
const Said = z
  .strictObject({
    reward: EvalResult.shape.outcome_reward,
    components: EvalResult.shape.components,
    trace_rewards: EvalResult.shape.trace_rewards,
    metadata: EvalResult.shape.metadata,
  })
  .refine(({ reward }) => typeof reward === 'number', { path: ['reward'], error: 'must be a number' })

/** Decimal notation, so that "0x1", "" and "Infinity" are no rewards. */
const NUMBER = /^[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?$/

/** A reward that a program wrote, or why its text is none. */
export type ParsedReward = { result: EvalResult } | { problem: string }

/**
 * Reads a reward that a program wrote: a number, or a JSON object with `reward` and optionally `components`,
 * `trace_rewards` and `metadata`. `from` names the place of the text in messages.
 */
export function parseReward(text: string, from: string): ParsedReward {
  const said = text.trim()
  if (NUMBER.test(said)) {
    const value = Number(said)
    return Number.isFinite(value)
      ? { result: { outcome_reward: value, metadata: {} } }
      : noReward(said, from, 'it is not finite')
  }
  let value: unknown
  try {
    value = JSON.parse(said)
  } catch {
    return noReward(said, from, 'it is neither a number nor JSON')
  }
  const parsed = Said.safeParse(value)
  if (!parsed.success) return noReward(said, from, describeIssues(parsed.error))
  const { reward, ...rest } = parsed.data
  return { result: { outcome_reward: reward ?? null, ...rest } }
}

function noReward(text: string, from: string, why: string): { problem: string } {
  const shown = JSON.stringify(text.length > 200 ? `${text.slice(0, 200)}…` : text)
  return { problem: `${from} is not a reward: ${shown} (${why})` }
}
