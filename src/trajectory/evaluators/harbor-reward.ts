import * as z from 'zod'
import { RolloutError } from '../../model/failure.ts'

/** Rewards by name; `reward` if the file contains a plain number. */
export type Rewards = Record<string, number>

/** Chooses the outcome among several rewards. */
export const HarborOutcome = z
  .union([z.enum(['auto', 'mean']), z.strictObject({ key: z.string().min(1) })])
  .default('auto')
  .describe(
    'auto: the reward named "reward", or the only one; mean: the mean of all; {key: name}: the reward with that name',
  )
type HarborOutcome = z.infer<typeof HarborOutcome>

/** Decimal notation: "nan", "0x1" and "1_0" are not rewards. */
const NUMBER = /^[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?$/
const SHOWN_CHARS = 200

/** Parses a reward file. Returns the rewards, or why it contains none. */
export function parseRewardFile(
  file: 'reward.json' | 'reward.txt',
  text: string,
): { rewards: Rewards } | { problem: string } {
  const trimmed = text.trim()
  if (trimmed === '') return { problem: 'is empty' }
  if (file === 'reward.json') return parseRewardJson(trimmed)
  if (!NUMBER.test(trimmed)) return { problem: `holds no number: ${shown(trimmed)}` }
  return toRewards({ reward: Number(trimmed) })
}

function parseRewardJson(text: string): { rewards: Rewards } | { problem: string } {
  let value: unknown
  try {
    value = JSON.parse(text)
  } catch {
    return { problem: `is no JSON: ${shown(text)}` }
  }
  if (typeof value !== 'object') return toRewards({ reward: value })
  if (value === null || Array.isArray(value))
    return { problem: `holds neither a number nor numbers by name: ${shown(text)}` }
  return toRewards(value)
}

function toRewards(values: object): { rewards: Rewards } | { problem: string } {
  const rewards: Rewards = {}
  for (const [name, value] of Object.entries(values)) {
    // Harbor parses rewards in Python, where true equals 1.
    const number: unknown = typeof value === 'boolean' ? Number(value) : value
    if (typeof number !== 'number' || !Number.isFinite(number)) {
      return {
        problem: `says ${shown(JSON.stringify(value) ?? 'nothing')} for ${shown(name)}, which is no finite number`,
      }
    }
    rewards[name] = number
  }
  return Object.keys(rewards).length === 0 ? { problem: 'names no reward' } : { rewards }
}

/**
 * Harbor uses the reward named `reward` where it needs a single one. It defines nothing for several rewards without that name,
 * so this function throws instead of guessing.
 */
export function decideOutcome(rewards: Rewards, outcome: HarborOutcome): number {
  const values = Object.values(rewards)
  if (outcome === 'mean') return values.reduce((sum, value) => sum + value, 0) / values.length
  if (outcome === 'auto' && values.length === 1) return values[0]!
  const key = outcome === 'auto' ? 'reward' : outcome.key
  const value = Object.hasOwn(rewards, key) ? rewards[key] : undefined
  if (value !== undefined) return value
  throw new RolloutError(
    'evaluator.crashed',
    `The tests gave rewards for ${Object.keys(rewards).map(shown).join(', ')}, none of which is ${shown(key)}. Set outcome to one of them, or to mean.`,
  )
}

function shown(text: string): string {
  return JSON.stringify(text.length > SHOWN_CHARS ? `${text.slice(0, SHOWN_CHARS)}…` : text)
}
