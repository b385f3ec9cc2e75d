import { sql } from 'kysely'
import type { Sql } from '../../database.ts'

/**
 * Returns how many sessions of this owner may be queued; null: no limit. Holds a lock that other submits and retries of the
 * owner wait for, until the transaction ends. Must be the first lock of a transaction.
 */
export async function lockQueueLimit(db: Sql, owner: string): Promise<number | null> {
  const { rows } = await sql<{ max_queued: number | null }>`
    select max_queued from quotas where owner = ${owner} and max_queued is not null for no key update
  `.execute(db)
  return rows[0]?.max_queued ?? null
}

/** Whether `more` sessions may be queued. Stops counting at the limit. */
export async function fitsQueueLimit(db: Sql, owner: string, limit: number | null, more: number): Promise<boolean> {
  if (limit === null || more === 0) return true
  const { rows } = await sql<{ n: number }>`
    select ((
      select count(*) from (
        select 1 from lanes join sessions on sessions.lane_id = lanes.id
        where lanes.owner = ${owner} and state = 'queued' limit ${limit + 1}::int
      ) waiting
    ) + (
      select count(*) from sessions join lanes on lanes.id = lane_id where state = 'resting' and lanes.owner = ${owner}
    ))::int as n
  `.execute(db)
  return (rows[0]?.n ?? 0) + more <= limit
}
