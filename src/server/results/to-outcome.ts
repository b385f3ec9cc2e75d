import type { SessionOutcome } from '../../model/session-outcome.ts'
import type { SessionResult } from '../../model/session.ts'

/** The part of an outcome that a posted result holds; the server knows the rest. */
export type PostedOutcome = Omit<SessionOutcome, 'attempt' | 'nodeId' | 'endedAt'>

/** How a session ended, read from a result as NVIDIA Polar's nodes post it: they say nothing else of it. */
export function toOutcome(result: SessionResult): PostedOutcome {
  const { session_id, task_id, status, trajectory, timing, failure } = result
  const { traces } = trajectory
  const sampled = traces.reduce((sum, { loss_mask }) => sum + loss_mask.filter((mask) => mask === 1).length, 0)
  const rewards = traces.flatMap(({ reward }) => (reward == null ? [] : [reward]))
  const calls = traces.length
  return {
    schemaVersion: 1,
    sessionId: session_id,
    taskId: task_id,
    status,
    ...(failure != null && { failure }),
    ...(rewards.length > 0 && { grade: { outcome_reward: mean(rewards), metadata: {} } }),
    counts: {
      builder: 'unknown',
      turns: calls,
      calls,
      rows: calls,
      trainedCalls: calls,
      tokens: { sampled, trained: sampled, excluded: 0 },
    },
    timing,
    artifacts: [],
  }
}

/** An outcome's reward is given to all of its traces, so they are usually the same. */
function mean(values: readonly number[]): number {
  const [first = 0] = values
  if (values.every((value) => value === first)) return first
  return values.reduce((sum, value) => sum + value, 0) / values.length
}
