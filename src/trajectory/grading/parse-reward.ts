import * as z from 'zod'
import { RolloutError } from '../../model/failure.ts'
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

/**
 * A reward as a program wrote it: a number, or a JSON object with `reward` and optionally `components`, `trace_rewards` and
 * `metadata`. Throws `evaluator.crashed` for anything else; `from` says in words where it stood.
 */
export function parseReward(text: string, from: string): EvalResult {
  const said = text.trim()
  if (NUMBER.test(said)) return { outcome_reward: finite(Number(said), from), metadata: {} }
  const parsed = Said.safeParse(parseJson(said, from))
  if (parsed.success) {
    const { reward, ...rest } = parsed.data
    return { outcome_reward: reward ?? null, ...rest }
  }
  throw unreadable(said, from, describeIssues(parsed.error))
}

function parseJson(text: string, from: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    throw unreadable(text, from, 'it is neither a number nor JSON')
  }
}

function finite(value: number, from: string): number {
  if (Number.isFinite(value)) return value
  throw unreadable(String(value), from, 'it is not finite')
}

function unreadable(text: string, from: string, why: string): RolloutError {
  const shown = JSON.stringify(text.length > 200 ? `${text.slice(0, 200)}…` : text)
  return new RolloutError('evaluator.crashed', `${from} is not a reward: ${shown} (${why})`)
}
