import type { SessionOutcome } from '../../model/session-outcome.ts'
import type { Sql } from '../database.ts'
import type { Acceptance, ResultReference } from '../dispatch.ts'
import type { Settle } from './settle-lanes.ts'

/** Takes what a node brings, exactly once, and only from the attempt that holds the session. */
export async function accept(
  db: Sql,
  outcome: SessionOutcome,
  result: ResultReference | undefined,
  settle: Settle,
): Promise<Acceptance> {
  const { sessionId, attempt, nodeId, status, failure, timing, grade, counts } = outcome
  const reward = grade?.outcome_reward ?? undefined
  const isTrainable = (counts?.tokens.trained ?? 0) > 0
  const settled = await settle(outcome.taskId, {
    kind: 'accepted',
    sessionId,
    attempt,
    nodeId,
    status,
    failure,
    reward,
    timing,
    isTrainable,
    result,
  })
  return settled === undefined ? whyNot(db, outcome, result) : { kind: 'accepted', ...settled }
}

async function whyNot(
  db: Sql,
  { sessionId, attempt }: SessionOutcome,
  result: ResultReference | undefined,
): Promise<Acceptance> {
  const session = await db
    .selectFrom('sessions')
    .leftJoin('results', (join) =>
      join.onRef('results.session_id', '=', 'sessions.id').on('results.attempt', '=', attempt),
    )
    .select(['sessions.attempt', 'sessions.status', 'results.digest'])
    .where('sessions.id', '=', sessionId)
    .executeTakeFirst()
  if (session === undefined) return { kind: 'refused', reason: 'unknown-session' }
  if (session.digest !== null && session.digest === (result?.digest ?? '')) return { kind: 'duplicate' }
  const isCancelled = session.attempt === attempt && session.status === 'CANCELLED'
  return { kind: 'refused', reason: isCancelled ? 'cancelled' : 'stale' }
}
