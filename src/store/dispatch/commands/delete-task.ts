import { sql, type Transaction } from 'kysely'
import type { Sql } from '../../database.ts'
import type { Tables } from '../../database/tables.ts'
import { lockTask } from '../internal/lock-task.ts'
import type { DeleteOutcome } from '../types.ts'

export function deleteTask(db: Sql, taskId: string, now: number): Promise<DeleteOutcome> {
  return db.transaction().execute(async (tx): Promise<DeleteOutcome> => {
    const task = await lockTask(tx, taskId)
    if (task === undefined || task.is_tombstone) return { kind: 'unknown-task' }
    if (task.status === 'running') return { kind: 'running' }
    const [deleted] = await markDeleted(tx, [taskId], now)
    return { kind: 'deleted', sessions: deleted!.need, bytes: deleted!.bytes }
  })
}

/**
 * Hides the tasks from all queries. `clearDeleted` deletes their sessions later, a few at a time. The caller holds the locks
 * on the tasks, which have ended.
 */
export async function markDeleted(
  tx: Transaction<Tables>,
  taskIds: readonly string[],
  now: number,
): Promise<{ id: string; need: number; bytes: number }[]> {
  const ids = JSON.stringify(taskIds)
  const { rows } = await sql<{ id: string; need: number; bytes: number }>`
    with t as (
      update tasks set is_tombstone = true, deleted_at = ${now}::float8, updated_at = ${now}::float8, ended_at = null,
        body = '', callback_url = null
      where id = any(array(select json_array_elements_text(${ids}::json)))
      returning id, need, bytes
    ), c as (
      delete from callbacks where task_id = any(array(select json_array_elements_text(${ids}::json)))
    ), e as (
      insert into events (type, task_id, data, ts)
      select 'task.deleted', id, json_build_object('task_id', id, 'status', 'deleted')::text, ${now}::float8 from t
    )
    select id, need, bytes from t
  `.execute(tx)
  return rows
}
