import { sql, type Transaction } from 'kysely'
import { type Failure, RolloutError } from '../../../model/failure.ts'
import type { Sql } from '../../database.ts'
import type { Tables, TaskState } from '../../database/tables.ts'
import { closeRest, endTask } from '../internal/close-task.ts'
import { type LockedTask, lockTask } from '../internal/lock-task.ts'
import { toUpdate, writeEvents } from '../internal/write-events.ts'

const REQUESTED = 'A cancel request ended the session.'

function cancelled(reason: string): Failure {
  return new RolloutError('session.cancelled', reason).failure
}

export function cancelTask(
  db: Sql,
  taskId: string,
  now: number,
  { registerIfMissing = false, reason = REQUESTED }: { registerIfMissing?: boolean; reason?: string } = {},
): Promise<TaskState | undefined> {
  return db.transaction().execute(async (tx) => {
    if (registerIfMissing && (await putTombstone(tx, taskId, now))) return 'cancelled'
    const task = await lockTask(tx, taskId)
    // A deleted task leaves a tombstone too, which rejects a late submission.
    if (task !== undefined && task.deleted_at !== null) return registerIfMissing ? 'cancelled' : undefined
    if (task === undefined || task.status !== 'running') return task?.status
    await closeRest(tx, taskId, cancelled(reason), now)
    await endTask(tx, taskId, 'cancelled', now)
    return 'cancelled'
  })
}

/** Inserts a row under the id of the task, so that a concurrent submission conflicts. Whether the row was inserted. */
async function putTombstone(tx: Transaction<Tables>, taskId: string, now: number): Promise<boolean> {
  const { rows } = await sql`
    insert into tasks (id, body, digest, owner, status, is_tombstone, priority, harness, need, max_failures, created_at,
      updated_at)
    values (${taskId}, '', '', '', 'cancelled', true, 0, '', 0, 0, ${now}::float8, ${now}::float8)
    on conflict (id) do nothing returning id
  `.execute(tx)
  return rows.length > 0
}

/** `isCancelled`: the session was unfinished. `taskId` is absent if the session does not exist. */
export async function cancelSession(
  db: Sql,
  sessionId: string,
  now: number,
  reason = REQUESTED,
): Promise<{ isCancelled: boolean; taskId?: string }> {
  const session = await db.selectFrom('sessions').select('task_id').where('id', '=', sessionId).executeTakeFirst()
  if (session === undefined) return { isCancelled: false }
  const taskId = session.task_id
  const isCancelled = await db.transaction().execute(async (tx) => {
    const task = await lockTask(tx, taskId)
    if (task?.status !== 'running' || (await closeRest(tx, taskId, cancelled(reason), now, sessionId)) === 0)
      return false
    const ended = task.ended + 1
    if (ended < task.need) {
      await writeEvents(tx, [{ type: 'task.updated', data: toUpdate(taskId, { ...task, ended }) }], now)
      return true
    }
    await endTask(tx, taskId, toEnd(task), now)
    return true
  })
  return { isCancelled, taskId }
}

/** `cancelled` only if no session completed or failed. */
function toEnd({ valid, failed }: LockedTask): TaskState {
  if (valid > 0) return 'completed'
  return failed > 0 ? 'failed' : 'cancelled'
}
