import { type Selectable, sql, type Transaction } from 'kysely'
import type { Tables } from '../../database/tables.ts'

type Counts = 'need' | 'ended' | 'valid' | 'usable' | 'failed'
type Limits = 'early_stop' | 'policy_version' | 'staleness_limit'
export type LockedTask = Pick<
  Selectable<Tables['tasks']>,
  'status' | 'is_tombstone' | 'priority' | 'deleted_at' | Counts | Limits
>

/** First statement of every transaction that starts or ends sessions of a task: serialises these transactions. */
export async function lockTask(tx: Transaction<Tables>, taskId: string): Promise<LockedTask | undefined> {
  const { rows } = await sql<LockedTask>`
    select status, is_tombstone, priority, need, ended, valid, usable, failed, early_stop, policy_version,
      staleness_limit, deleted_at
    from tasks where id = ${taskId} for no key update
  `.execute(tx)
  return rows[0]
}
