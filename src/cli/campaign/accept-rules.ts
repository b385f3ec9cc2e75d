import * as z from 'zod'
import { AgentEnding } from '../../model/session-outcome.ts'

export const EndingKind = AgentEnding.shape.kind

/** Which sessions of a campaign become training data. All rules must hold. */
export const AcceptRules = z.strictObject({
  /** Lowest accepted reward; null: any, also none. */
  minReward: z.number().nullable(),
  endings: z.array(EndingKind).min(1),
  /** Number of tool calls in the trained answers. */
  minToolCalls: z.int().min(0),
  /** Model calls of the session; null: no limit. */
  maxTurns: z.int().min(1).nullable(),
})
export type AcceptRules = z.infer<typeof AcceptRules>

/** Why a session whose end was caused by the agent is not accepted. */
export const RejectReason = z.enum([
  'ending',
  'no-reward',
  'reward',
  'incomplete',
  'nothing-trained',
  'turns',
  'tool-calls',
  'secret',
  'duplicate',
])
export type RejectReason = z.infer<typeof RejectReason>

/** Facts that are known without the calls of the session. */
export interface EndingFacts {
  ending: z.infer<typeof EndingKind> | undefined
  reward: number | undefined
}

/** Facts about the built trajectory. */
export interface TrajectoryFacts {
  /** Whether all calls of the session were recorded. */
  isComplete: boolean
  turns: number
  toolCalls: number
  trainedTokens: number
}

export function whyEndingRejected({ ending, reward }: EndingFacts, rules: AcceptRules): RejectReason | undefined {
  if (ending === undefined || !rules.endings.includes(ending)) return 'ending'
  if (rules.minReward === null) return undefined
  if (reward === undefined) return 'no-reward'
  return reward < rules.minReward ? 'reward' : undefined
}

export function whyTrajectoryRejected(facts: TrajectoryFacts, rules: AcceptRules): RejectReason | undefined {
  if (!facts.isComplete) return 'incomplete'
  if (facts.trainedTokens === 0) return 'nothing-trained'
  if (rules.maxTurns !== null && facts.turns > rules.maxTurns) return 'turns'
  return facts.toolCalls < rules.minToolCalls ? 'tool-calls' : undefined
}
