import { sql, type Transaction } from 'kysely'
import type { Tables, TaskState } from '../../database/tables.ts'

export interface LockedTask {
  status: TaskState
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

/** First statement of every transaction that starts or ends sessions of a task: serialises these transactions. */
export async function lockTask(tx: Transaction<Tables>, taskId: string): Promise<LockedTask | undefined> {
  const { rows } = await sql<LockedTask>`
    select status, is_tombstone, priority, need, ended, valid, usable, failed, early_stop, policy_version,
      staleness_limit, deleted_at
    from tasks where id = ${taskId} for no key update
  `.execute(tx)
  return rows[0]
}
