import type { SessionOutcome } from '../../model/session-outcome.ts'
import type { SessionResult } from '../../model/session.ts'

/** The fields of an outcome that a posted result contains; the server adds the rest. */
export type PostedOutcome = Omit<SessionOutcome, 'attempt' | 'nodeId' | 'endedAt'>

/** Derives the outcome from a result of an NVIDIA Polar node, which posts nothing else. */
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
    failure: failure ?? undefined,
    grade: rewards.length > 0 ? { outcome_reward: mean(rewards), metadata: {} } : undefined,
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

/** All traces of a session usually have the same reward; then the mean must be exactly that value. */
function mean(values: readonly number[]): number {
  const [first = 0] = values
  if (values.every((value) => value === first)) return first
  return values.reduce((sum, value) => sum + value, 0) / values.length
}
