import type { SessionOutcome } from '../../../model/session-outcome.ts'
import type { Sql } from '../../database.ts'
import type { Settle } from '../internal/settle-queue.ts'
import type { Acceptance, ArtifactReference, ResultReference } from '../types.ts'

/** Accepts the result of an attempt exactly once, and only from the attempt that holds the session. */
export async function accept(
  db: Sql,
  outcome: SessionOutcome,
  { result, artifacts }: { result?: ResultReference; artifacts?: readonly ArtifactReference[] },
  settle: Settle,
): Promise<Acceptance> {
  const { sessionId, attempt, nodeId, status, failure, timing, grade, counts } = outcome
  const settled = await settle(outcome.taskId, {
    kind: 'accepted',
    sessionId,
    attempt,
    nodeId,
    status,
    failure,
    reward: grade?.outcome_reward ?? undefined,
    timing,
    isTrainable: (counts?.tokens.trained ?? 0) > 0,
    traces: counts?.rows,
    completions: counts?.calls,
    result,
    artifacts,
  })
  if (settled === undefined) return explainRefusal(db, outcome, result)
  return { kind: 'accepted', isRefilled: settled.isRefilled, taskStatus: settled.taskStatus }
}

/** The session may have a newer attempt. */
async function explainRefusal(
  db: Sql,
  { sessionId, attempt }: SessionOutcome,
  result: ResultReference | undefined,
): Promise<Acceptance> {
  const session = await db
    .selectFrom('sessions')
    .leftJoin('results', (join) =>
      join.onRef('results.session_id', '=', 'sessions.id').on('results.attempt', '=', attempt),
    )
    .leftJoin('attempts', (join) =>
      join.onRef('attempts.session_id', '=', 'sessions.id').on('attempts.attempt', '=', attempt),
    )
    .select(['attempts.ending', 'results.digest'])
    .where('sessions.id', '=', sessionId)
    .executeTakeFirst()
  if (session === undefined) return { kind: 'refused', reason: 'unknown-session' }
  if (session.digest !== null && session.digest === (result?.digest ?? '')) return { kind: 'duplicate' }
  return { kind: 'refused', reason: session.ending === 'cancelled' ? 'cancelled' : 'stale' }
}
