import { sql } from 'kysely'
import type { Sql } from '../../database.ts'

/** What an owner may have under way at once. Null: as much as it likes. */
export interface Quota {
  maxQueued: number | null
  maxRunning: number | null
}

export interface QuotaUse extends Quota {
  owner: string
  queued: number
  running: number
}

/** What is under way already stays so. */
export async function putQuota(db: Sql, owner: string, { maxQueued, maxRunning }: Quota): Promise<void> {
  const limits = { max_queued: maxQueued, max_running: maxRunning }
  await db
    .insertInto('quotas')
    .values({ owner, ...limits })
    .onConflict((conflict) => conflict.column('owner').doUpdateSet(limits))
    .execute()
}

/** Of all that have a quota or ever submitted anything. */
export async function listQuotas(db: Sql): Promise<QuotaUse[]> {
  const { rows } = await sql<QuotaUse>`
    select o.owner, q.max_queued as "maxQueued", q.max_running as "maxRunning",
      coalesce(sum((select count(*) from sessions where state = 'queued' and lane_id = lanes.id)
        + (select count(*) from sessions where state = 'resting' and lane_id = lanes.id)), 0)::int as queued,
      coalesce(sum(r.n), 0)::int as running
    from (select owner from lanes union select owner from quotas) o
    left join quotas q on q.owner = o.owner
    left join lanes on lanes.owner = o.owner
    left join (select lane_id, count(*) as n from sessions where state = 'leased' group by lane_id) r
      on r.lane_id = lanes.id
    group by o.owner, q.max_queued, q.max_running order by o.owner
  `.execute(db)
  return rows
}

/**
 * How many sessions of this owner may wait; null: any number. Until the transaction ends nobody else adds to them by
 * submitting or retrying. The first lock of any transaction that takes it.
 */
export async function lockQueueLimit(db: Sql, owner: string): Promise<number | null> {
  const { rows } = await sql<{ max_queued: number | null }>`
    select max_queued from quotas where owner = ${owner} and max_queued is not null for no key update
  `.execute(db)
  return rows[0]?.max_queued ?? null
}

/** Whether so many more may wait. Does not count further than it needs to. */
export async function hasQueueRoom(db: Sql, owner: string, limit: number | null, more: number): Promise<boolean> {
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
