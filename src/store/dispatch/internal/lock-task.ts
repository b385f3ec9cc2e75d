import { sql, type Transaction } from 'kysely'
import type { Tables, TaskWord } from '../../database/tables.ts'

export interface LockedTask {
  status: TaskWord
  is_tombstone: boolean
  priority: number
  need: number
  ended: number
  valid: number
  usable: number
  failed: number
  early_stop: number | null
  policy_version: number | null
  staleness_limit: number | null
  deleted_at: number | null
}

/** Whatever ends or begins anything of a task does this first, so all of that happens one after the other. */
export async function lockTask(tx: Transaction<Tables>, taskId: string): Promise<LockedTask | undefined> {
  const { rows } = await sql<LockedTask>`
    select status, is_tombstone, priority, need, ended, valid, usable, failed, early_stop, policy_version,
      staleness_limit, deleted_at
    from tasks where id = ${taskId} for no key update
  `.execute(tx)
  return rows[0]
}
