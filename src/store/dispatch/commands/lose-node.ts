import type { Sql } from '../../database.ts'
import { loseSessions } from '../internal/lose-sessions.ts'
import type { Settle } from '../internal/settle-queue.ts'
import type { Lease } from '../types.ts'

/** Ends all attempts that the node holds, except those in `holding`. Returns how many. */
export async function loseNode(
  db: Sql,
  settle: Settle,
  nodeId: string,
  holding: readonly Lease[] = [],
): Promise<number> {
  const leased = await db
    .selectFrom('sessions')
    .select(['id', 'attempt', 'task_id'])
    .where('state', '=', 'leased')
    .where('node_id', '=', nodeId)
    .orderBy('id')
    .execute()
  const kept = new Set(holding.map(({ sessionId, attempt }) => `${sessionId}/${attempt}`))
  const lost = leased.filter(({ id, attempt }) => !kept.has(`${id}/${attempt}`))
  return loseSessions(
    settle,
    lost.map(({ id, attempt, task_id }) => ({ sessionId: id, attempt, taskId: task_id })),
  )
}
