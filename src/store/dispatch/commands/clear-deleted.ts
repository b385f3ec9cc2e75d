import { sql, type Transaction } from 'kysely'
import type { Sql } from '../../database.ts'
import type { Tables } from '../../database/tables.ts'
import type { ClearedRows } from '../types.ts'

/** Keeps transactions short: on the embedded database all other statements wait. */
const MAX_SESSIONS = 50
const MAX_ARTIFACTS = 1000

/**
 * Deletes some rows of a deleted task. All of its sessions have ended, so no other statement changes them; other servers
 * skip the locked task and clear another.
 */
export function clearDeleted(db: Sql, taskId?: string): Promise<ClearedRows | undefined> {
  return db.transaction().execute(async (tx) => {
    const { rows } = await sql<{ id: string }>`
      select id from tasks where is_tombstone and need > 0 and (${taskId ?? null}::text is null or id = ${taskId ?? null}::text)
      limit 1 for no key update skip locked
    `.execute(tx)
    const [task] = rows
    return task === undefined ? undefined : { taskId: task.id, paths: await clearSome(tx, task.id) }
  })
}

async function clearSome(tx: Transaction<Tables>, taskId: string): Promise<string[]> {
  const sessions = await tx
    .selectFrom('sessions')
    .select('id')
    .where('task_id', '=', taskId)
    .orderBy('sample')
    .limit(MAX_SESSIONS)
    .execute()
  const ids = JSON.stringify(sessions.map(({ id }) => id))
  const artifacts = await sql<{ path: string }>`
    delete from artifacts where ctid = any(array(
      select ctid from artifacts where session_id = any(array(select json_array_elements_text(${ids}::json)))
      limit ${MAX_ARTIFACTS}::int
    )) returning stored_path as path
  `.execute(tx)
  const paths = artifacts.rows.map(({ path }) => path)
  // Remaining artifacts still refer to their sessions.
  if (paths.length === MAX_ARTIFACTS) return paths
  const isLast = sessions.length < MAX_SESSIONS
  const results = await sql<{ path: string }>`
    with r as (
      delete from results where session_id = any(array(select json_array_elements_text(${ids}::json))) returning path
    ), a as (
      delete from attempts where session_id = any(array(select json_array_elements_text(${ids}::json)))
    ), s as (
      delete from sessions where id = any(array(select json_array_elements_text(${ids}::json)))
    ), t as (
      update tasks set need = case when ${isLast}::boolean then 0 else need - ${sessions.length}::int end
      where id = ${taskId}
    )
    select path from r where path <> ''
  `.execute(tx)
  return [...paths, ...results.rows.map(({ path }) => path)]
}
