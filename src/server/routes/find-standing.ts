import type { Sql } from '../../store/database.ts'

export interface Standing {
  taskId: string
  /** `held`: the node has it, and nobody else. Else how the attempt ended, `gone` when nothing is known of it there. */
  kind: 'held' | 'accepted' | 'cancelled' | 'gone'
}

/** How an attempt at a session stands, for the node that says it has it. Undefined: nobody knows the session. */
export async function findStanding(
  db: Sql,
  { sessionId, attempt, nodeId }: { sessionId: string; attempt: number; nodeId: string },
): Promise<Standing | undefined> {
  const row = await db
    .selectFrom('sessions')
    .leftJoin('attempts', (join) =>
      join.onRef('attempts.session_id', '=', 'sessions.id').on('attempts.attempt', '=', attempt),
    )
    .select(['sessions.task_id', 'sessions.state', 'sessions.attempt', 'sessions.node_id'])
    .select(['attempts.ending', 'attempts.node_id as ended_by'])
    .where('sessions.id', '=', sessionId)
    .executeTakeFirst()
  if (row === undefined) return undefined
  const isHeld = row.state === 'leased' && row.attempt === attempt && row.node_id === nodeId
  if (isHeld) return { taskId: row.task_id, kind: 'held' }
  const isTheirs = row.ended_by === nodeId && (row.ending === 'accepted' || row.ending === 'cancelled')
  return { taskId: row.task_id, kind: isTheirs ? (row.ending as 'accepted' | 'cancelled') : 'gone' }
}
