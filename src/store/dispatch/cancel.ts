import { sql, type Transaction } from 'kysely'
import type { Sql } from '../database.ts'
import type { Tables, TaskWord } from '../database/tables.ts'
import { closeRest, endTask } from './close-task.ts'

const ASKED = 'Somebody asked for it to end.'

export function cancelTask(db: Sql, taskId: string, now: number, why = ASKED): Promise<TaskWord | undefined> {
  return db.transaction().execute(async (tx) => {
    const task = await lockTask(tx, taskId)
    if (task === undefined || task.status !== 'running') return task?.status
    await closeRest(tx, taskId, why, now)
    await endTask(tx, taskId, 'cancelled', now)
    return 'cancelled'
  })
}

export async function cancelSession(db: Sql, sessionId: string, now: number): Promise<boolean> {
  const session = await db.selectFrom('sessions').select('task_id').where('id', '=', sessionId).executeTakeFirst()
  if (session === undefined) return false
  return db.transaction().execute(async (tx) => {
    const task = await lockTask(tx, session.task_id)
    if (task?.status !== 'running' || (await closeRest(tx, session.task_id, ASKED, now, sessionId)) === 0) return false
    if (task.ended + 1 < task.need) return true
    await endTask(tx, session.task_id, toEnd(task), now)
    return true
  })
}

interface LockedTask {
  status: TaskWord
  need: number
  ended: number
  valid: number
  failed: number
}

/** Nothing of it was done, and not because it could not be. */
function toEnd({ valid, failed }: LockedTask): TaskWord {
  if (valid > 0) return 'completed'
  return failed > 0 ? 'failed' : 'cancelled'
}

async function lockTask(tx: Transaction<Tables>, taskId: string): Promise<LockedTask | undefined> {
  const { rows } = await sql<LockedTask>`
    select status, need, ended, valid, failed from tasks where id = ${taskId} for no key update
  `.execute(tx)
  return rows[0]
}

/** Versions only go up; one that comes late changes nothing. */
export async function advancePolicy(db: Sql, version: number, now: number): Promise<void> {
  await db.updateTable('policy').set({ version }).where('version', '<', version).execute()
  await cancelStale(db, now)
}

/** Each in a transaction of its own; what a crash leaves undone is found at the next call. */
export async function cancelStale(db: Sql, now: number): Promise<void> {
  const { rows } = await sql<{ id: string; policy_version: number; version: number }>`
    select tasks.id, policy_version, version from tasks, policy
    where status = 'running' and policy_version is not null and policy_version + staleness_limit < version
  `.execute(db)
  for (const { id, policy_version, version } of rows) {
    const why = `It was made for version ${policy_version} of the policy, which is too old now that it is ${version}.`
    await cancelTask(db, id, now, why)
  }
}
