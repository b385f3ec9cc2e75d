import { type Selectable, sql, type Transaction } from 'kysely'
import type { TaskRequest } from '../../../model/task.ts'
import type { Tables } from '../../database/tables.ts'

/** Limit of the API on a task id, in characters. */
const MAX_ID_LENGTH = 512

type OldTask = Pick<Selectable<Tables['tasks']>, 'id' | 'status' | 'is_tombstone' | 'deleted_at' | 'submit_key' | 'run'>

/** A finished task whose id was freed for a new run. */
export interface Archived {
  /** New id of the older run. */
  id: string
  /** Number of the new run. */
  nextRun: number
}

/**
 * Frees the ids of finished tasks, so that they can be submitted again: the older run is renamed to `<id>~<run>`. A running
 * task, a task that was cancelled before it was submitted, and the task that this submit created (`key`) keep their ids.
 * Locks tasks in order of id, like every transaction.
 */
export async function archiveFinished(
  tx: Transaction<Tables>,
  ids: readonly string[],
  key: string | undefined,
): Promise<Map<string, Archived>> {
  const { rows } = await sql<OldTask>`
    select id, status, is_tombstone, deleted_at, submit_key, run from tasks
    where id = any(array(select json_array_elements_text(${JSON.stringify(ids)}::json)))
    order by id for update
  `.execute(tx)
  const archived = new Map<string, Archived>()
  for (const task of rows) {
    if (!mayArchive(task, key)) continue
    const id = await freeId(tx, task)
    await move(tx, task.id, id)
    archived.set(task.id, { id, nextRun: task.run + 1 })
  }
  return archived
}

function mayArchive({ status, is_tombstone, deleted_at, submit_key }: OldTask, key: string | undefined): boolean {
  if (status === 'running' || (is_tombstone && deleted_at === null)) return false
  return key === undefined || key !== submit_key
}

async function freeId(tx: Transaction<Tables>, { id, run }: OldTask): Promise<string> {
  for (let mark = `~${run}`; ; mark += '~') {
    const free = `${id.slice(0, MAX_ID_LENGTH - mark.length)}${mark}`
    const existing = await tx.selectFrom('tasks').select('id').where('id', '=', free).executeTakeFirst()
    if (existing === undefined) return free
  }
}

/** Sessions have a foreign key to the task row, so the row is copied first and deleted last. */
async function move(tx: Transaction<Tables>, from: string, to: string): Promise<void> {
  const { body, ...task } = await tx.selectFrom('tasks').selectAll().where('id', '=', from).executeTakeFirstOrThrow()
  const renamed = body === '' ? body : JSON.stringify({ ...(JSON.parse(body) as TaskRequest), task_id: to })
  await tx
    .insertInto('tasks')
    .values({ ...task, id: to, body: renamed })
    .execute()
  await tx.updateTable('sessions').set({ task_id: to }).where('task_id', '=', from).execute()
  await tx.updateTable('attempts').set({ task_id: to }).where('task_id', '=', from).execute()
  // The trainer expects new results; a callback of the older run would deliver old ones under an id it does not know.
  await tx.deleteFrom('callbacks').where('task_id', '=', from).where('state', '=', 'waiting').execute()
  await tx.updateTable('callbacks').set({ task_id: to }).where('task_id', '=', from).execute()
  await tx.deleteFrom('tasks').where('id', '=', from).execute()
}
