import { RolloutError } from '../../../model/failure.ts'
import type { Sql } from '../../database.ts'
import type { Lease } from '../port.ts'
import type { Settle } from '../internal/settle-queue.ts'

export interface LostLease extends Lease {
  taskId: string
  /** Only if it was not renewed since. */
  beat?: number
}

/** Nodes fell silent. How many that was so for: not for those that are not the holder's any more, or were renewed. */
export async function loseSessions(settle: Settle, lost: readonly LostLease[]): Promise<number> {
  const message = 'The node fell silent while the session was under way; see the log of that node.'
  const { failure } = new RolloutError('session.node-lost', message)
  const settled = await Promise.all(
    lost.map(({ taskId, ...lease }) =>
      settle(taskId, { ...lease, kind: 'lost', status: 'ERROR', failure, isTrainable: false }),
    ),
  )
  return settled.filter((each) => each !== undefined).length
}

/** All that this node has, but for what it names itself. */
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
