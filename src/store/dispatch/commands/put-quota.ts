import type { Sql } from '../../database.ts'
import type { Quota } from '../queries/quotas.ts'

/** Sessions that are already queued or running are not affected. */
export async function putQuota(db: Sql, owner: string, { maxQueued, maxRunning }: Quota): Promise<void> {
  const limits = { max_queued: maxQueued, max_running: maxRunning }
  await db
    .insertInto('quotas')
    .values({ owner, ...limits })
    .onConflict((conflict) => conflict.column('owner').doUpdateSet(limits))
    .execute()
}
