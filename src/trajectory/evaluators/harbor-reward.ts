import * as z from 'zod'
import { RolloutError } from '../../model/failure.ts'

/** By name; `reward` when the file said just a number. */
export type Rewards = Record<string, number>

/** Which of several rewards a session is worth. */
export const HarborOutcome = z
  .union([z.enum(['auto', 'mean']), z.strictObject({ key: z.string().min(1) })])
  .default('auto')
  .describe('auto: the one named reward, or the only one; mean: of all; {key: name}: that one')
type HarborOutcome = z.infer<typeof HarborOutcome>

/** Decimal notation, so that "nan", "0x1" and "1_0" are no rewards. */
const NUMBER = /^[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?$/
const TOLD_CHARS = 200

/** What a reward file says, or why it says nothing. */
export function parseRewardFile(
  file: 'reward.json' | 'reward.txt',
  text: string,
): { rewards: Rewards } | { problem: string } {
  const said = text.trim()
  if (said === '') return { problem: 'is empty' }
  if (file === 'reward.json') return parseRewardJson(said)
  if (!NUMBER.test(said)) return { problem: `holds no number: ${shown(said)}` }
  return toRewards({ reward: Number(said) })
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
    // Python, in which Harbor reads them, takes true for 1.
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
 * Harbor keeps rewards apart and lets `reward` stand for them where one is wanted. It says nothing of several without that
 * name, and neither do we: it would be a guess at what is trained on.
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
    `The tests gave rewards for ${Object.keys(rewards).map(shown).join(', ')}, none of which is ${shown(key)}; set outcome to one of them, or to mean.`,
  )
}

function shown(text: string): string {
  return JSON.stringify(text.length > TOLD_CHARS ? `${text.slice(0, TOLD_CHARS)}…` : text)
}
