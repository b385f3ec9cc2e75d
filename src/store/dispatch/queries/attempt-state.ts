import type { Sql } from '../../database.ts'

export interface AttemptState {
  taskId: string
  /** `held`: this node holds the attempt. `gone`: the attempt is unknown, lost, released or of another node. */
  kind: 'held' | 'accepted' | 'cancelled' | 'gone'
}

/** State of an attempt from the view of the node that ran it. Undefined if the session does not exist. */
export async function findAttemptState(
  db: Sql,
  { sessionId, attempt, nodeId }: { sessionId: string; attempt: number; nodeId: string },
): Promise<AttemptState | undefined> {
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
  const { task_id: taskId, ending } = row
  if (row.state === 'leased' && row.attempt === attempt && row.node_id === nodeId) return { taskId, kind: 'held' }
  const isKnown = row.ended_by === nodeId && (ending === 'accepted' || ending === 'cancelled')
  return { taskId, kind: isKnown ? ending : 'gone' }
}
