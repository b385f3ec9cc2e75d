import { sql, type Transaction } from 'kysely'
import { type Failure, RolloutError } from '../../../model/failure.ts'
import type { Sql } from '../../database.ts'
import type { Tables, TaskWord } from '../../database/tables.ts'
import { closeRest, endTask } from '../internal/close-task.ts'
import { toUpdate, writeEvents } from '../queries/events.ts'
import { type LockedTask, lockTask } from '../internal/lock-task.ts'

const ASKED = 'Somebody asked for it to end.'

function cancelled(why: string): Failure {
  return new RolloutError('session.cancelled', why).failure
}

export function cancelTask(
  db: Sql,
  taskId: string,
  now: number,
  { registerIfMissing = false, why = ASKED }: { registerIfMissing?: boolean; why?: string } = {},
): Promise<TaskWord | undefined> {
  return db.transaction().execute(async (tx) => {
    if (registerIfMissing && (await putTombstone(tx, taskId, now))) return 'cancelled'
    const task = await lockTask(tx, taskId)
    // One that was deleted is remembered as well, so that is as if it had been registered.
    if (task !== undefined && task.deleted_at !== null) return registerIfMissing ? 'cancelled' : undefined
    if (task === undefined || task.status !== 'running') return task?.status
    await closeRest(tx, taskId, cancelled(why), now)
    await endTask(tx, taskId, 'cancelled', now)
    return 'cancelled'
  })
}

/** In the place where the task would be, so that only one of the two can come first. Whether it was we. */
async function putTombstone(tx: Transaction<Tables>, taskId: string, now: number): Promise<boolean> {
  const { rows } = await sql`
    insert into tasks (id, body, digest, owner, status, is_tombstone, priority, harness, need, max_failures, created_at,
      updated_at)
    values (${taskId}, '', '', '', 'cancelled', true, 0, '', 0, 0, ${now}::float8, ${now}::float8)
    on conflict (id) do nothing returning id
  `.execute(tx)
  return rows.length > 0
}

/** Whether it was still to be done. `taskId` is absent when there is no such session. */
export async function cancelSession(
  db: Sql,
  sessionId: string,
  now: number,
): Promise<{ isCancelled: boolean; taskId?: string }> {
  const session = await db.selectFrom('sessions').select('task_id').where('id', '=', sessionId).executeTakeFirst()
  if (session === undefined) return { isCancelled: false }
  const taskId = session.task_id
  const isCancelled = await db.transaction().execute(async (tx) => {
    const task = await lockTask(tx, taskId)
    if (task?.status !== 'running' || (await closeRest(tx, taskId, cancelled(ASKED), now, sessionId)) === 0)
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

/** Nothing of it was done, and not because it could not be. */
function toEnd({ valid, failed }: LockedTask): TaskWord {
  if (valid > 0) return 'completed'
  return failed > 0 ? 'failed' : 'cancelled'
}

export async function getPolicy(db: Sql): Promise<number> {
  const { version } = await db.selectFrom('policy').select('version').executeTakeFirstOrThrow()
  return version
}

/** Versions only go up; one that comes late changes nothing. The one that holds. */
export async function advancePolicy(db: Sql, version: number): Promise<number> {
  await db.updateTable('policy').set({ version }).where('version', '<', version).execute()
  return getPolicy(db)
}

/** Each in a transaction of its own; what a crash leaves undone is found at the next call. Which they were. */
export async function cancelStale(db: Sql, now: number): Promise<string[]> {
  const { rows } = await sql<{ id: string; policy_version: number; version: number }>`
    select tasks.id, policy_version, version from tasks, policy
    where status = 'running' and policy_version is not null and policy_version + staleness_limit < version
  `.execute(db)
  for (const { id, policy_version, version } of rows) {
    const why = `It was made for version ${policy_version} of the policy, which is too old now that it is ${version}.`
    await cancelTask(db, id, now, { why })
  }
  return rows.map(({ id }) => id)
}
