import { sql } from 'kysely'
import type { Sql } from '../../database.ts'

/** Limits on the sessions of an owner. Null: no limit. */
export interface Quota {
  maxQueued: number | null
  maxRunning: number | null
}

export interface QuotaUse extends Quota {
  owner: string
  queued: number
  running: number
}

/** Lists every owner that has a quota or ever submitted a task. */
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
