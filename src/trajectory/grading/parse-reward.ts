import * as z from 'zod'
import { EvalResult } from '../../model/reward.ts'
import { describeIssues } from './describe-issues.ts'

/** Maximum size of a reward with its components. */
export const REWARD_BYTES = 256 * 1024

/** A reward as a JSON object. */
const RewardObject = z
  .strictObject({
    reward: EvalResult.shape.outcome_reward,
    components: EvalResult.shape.components,
    trace_rewards: EvalResult.shape.trace_rewards,
    metadata: EvalResult.shape.metadata,
  })
  .refine(({ reward }) => typeof reward === 'number', { path: ['reward'], error: 'must be a number' })

/** Decimal notation: "0x1", "" and "Infinity" are not rewards. */
const NUMBER = /^[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?$/

/** A parsed reward, or why the text is not a reward. */
export type ParsedReward = { result: EvalResult } | { problem: string }

/**
 * Parses a reward: a number, or a JSON object with `reward` and optionally `components`, `trace_rewards` and `metadata`.
 * `from` names the source of the text in messages.
 */
export function parseReward(text: string, from: string): ParsedReward {
  const trimmed = text.trim()
  if (NUMBER.test(trimmed)) {
    const value = Number(trimmed)
    return Number.isFinite(value)
      ? { result: { outcome_reward: value, metadata: {} } }
      : noReward(trimmed, from, 'it is not finite')
  }
  let value: unknown
  try {
    value = JSON.parse(trimmed)
  } catch {
    return noReward(trimmed, from, 'it is neither a number nor JSON')
  }
  const parsed = RewardObject.safeParse(value)
  if (!parsed.success) return noReward(trimmed, from, describeIssues(parsed.error))
  const { reward, ...rest } = parsed.data
  return { result: { outcome_reward: reward ?? null, ...rest } }
}

function noReward(text: string, from: string, why: string): { problem: string } {
  const shown = JSON.stringify(text.length > 200 ? `${text.slice(0, 200)}…` : text)
  return { problem: `${from} is not a reward: ${shown} (${why})` }
}
