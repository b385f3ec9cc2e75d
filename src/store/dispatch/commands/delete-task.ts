import { sql, type Transaction } from 'kysely'
import type { Sql } from '../../database.ts'
import type { Tables } from '../../database/tables.ts'
import type { DeleteOutcome } from '../port.ts'
import { lockTask } from '../internal/lock-task.ts'

export function deleteTask(db: Sql, taskId: string, now: number): Promise<DeleteOutcome> {
  return db.transaction().execute(async (tx): Promise<DeleteOutcome> => {
    const task = await lockTask(tx, taskId)
    if (task === undefined || task.is_tombstone) return { kind: 'unknown-task' }
    if (task.status === 'running') return { kind: 'running' }
    const [buried] = await bury(tx, [taskId], now)
    return { kind: 'deleted', sessions: buried!.need, bytes: buried!.bytes }
  })
}

/**
 * From here on nobody sees these tasks. That is all that has to happen at once: their sessions may be many, and are cleared
 * away after that, a few at a time, by whoever comes to it. The caller holds the locks on the tasks, which are over.
 */
export async function bury(
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
