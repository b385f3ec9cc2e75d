import { sql, type Transaction } from 'kysely'
import type { TaskRequest } from '../../../model/task.ts'
import type { Tables } from '../../database/tables.ts'

/** The longest id of a task that the API takes. */
const LONGEST_ID = 512

interface OldTask {
  id: string
  status: string
  is_tombstone: boolean
  deleted_at: number | null
  submit_key: string | null
  run: number
}

/** A task that was over and made room for a new run of its id. */
export interface Archived {
  /** The id of the older run from now on. */
  id: string
  /** The number of the new run. */
  nextRun: number
}

/**
 * Frees the ids of tasks that are over, so that they can be submitted again: the older run moves to `<id>~<run>`. A task
 * that runs, one that was cancelled before it came, and one that this very submit created (`key`) stay where they are.
 * Tasks are locked in the order of their ids, as everywhere.
 */
export async function archiveOver(
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
    const free = `${id.slice(0, LONGEST_ID - mark.length)}${mark}`
    const taken = await tx.selectFrom('tasks').select('id').where('id', '=', free).executeTakeFirst()
    if (taken === undefined) return free
  }
}

/** Rows of sessions refer to the row of their task, so that is copied first and removed last. */
async function move(tx: Transaction<Tables>, from: string, to: string): Promise<void> {
  const { body, ...task } = await tx.selectFrom('tasks').selectAll().where('id', '=', from).executeTakeFirstOrThrow()
  const renamed = body === '' ? body : JSON.stringify({ ...(JSON.parse(body) as TaskRequest), task_id: to })
  await tx
    .insertInto('tasks')
    .values({ ...task, id: to, body: renamed })
    .execute()
  await tx.updateTable('sessions').set({ task_id: to }).where('task_id', '=', from).execute()
  await tx.updateTable('attempts').set({ task_id: to }).where('task_id', '=', from).execute()
  // The trainer asks for new results; the callback of the older run would bring it old ones under an id it does not know.
  await tx.deleteFrom('callbacks').where('task_id', '=', from).where('state', '=', 'waiting').execute()
  await tx.updateTable('callbacks').set({ task_id: to }).where('task_id', '=', from).execute()
  await tx.deleteFrom('tasks').where('id', '=', from).execute()
}
