import { type RawBuilder, sql } from 'kysely'
import type { SessionOrder } from '../../model/session-order.ts'
import type { TaskRequest } from '../../model/task.ts'
import type { Sql } from '../database.ts'
import type { LeaseRoom, NodeStanding } from '../dispatch.ts'
import { pickFirst, pickWarm } from './pick.ts'

export interface Leased {
  orders: SessionOrder[]
  node: NodeStanding
}

/** Others may take what we had chosen in the moment between; then we choose again, but not for ever. */
const MOST_TRIES = 4

/**
 * Takes the first that wait in the lanes this node can serve. `isLimited` is kept by the caller between calls: whether
 * somebody has a limit on what runs. It need not be right, only remembered, so that each way costs one round trip.
 */
export async function lease(
  db: Sql,
  nodeId: string,
  room: LeaseRoom,
  hint: { isLimited: boolean },
  now: number,
): Promise<Leased> {
  const orders: SessionOrder[] = []
  let wanted = room.freeSlots
  for (let tries = 0; ; tries += 1) {
    const round = await leaseOnce(db, nodeId, { ...room, freeSlots: wanted }, hint, now)
    orders.push(...round.orders)
    wanted -= round.orders.length
    const isMore = round.orders.length < round.chosen && wanted > 0
    if (!isMore || tries >= MOST_TRIES) return { orders, node: round.node }
  }
}

interface Round extends Leased {
  /** How many there seemed to be for us. */
  chosen: number
}

async function leaseOnce(
  db: Sql,
  nodeId: string,
  room: LeaseRoom,
  hint: { isLimited: boolean },
  now: number,
): Promise<Round> {
  if (!hint.isLimited) {
    const { isLimited, ...round } = await takeFrom(db, nodeId, room, undefined, now)
    hint.isLimited = isLimited
    if (!isLimited) return round
  }
  return db.transaction().execute(async (tx) => {
    const limits = await lockRunningLimits(tx)
    hint.isLimited = limits.length > 0
    return takeFrom(tx, nodeId, room, JSON.stringify(limits), now)
  })
}

/**
 * Of all owners with a limit on what runs and something to run. Whoever leases locks these first, holding nothing, and
 * counts only then, in a statement of its own: so the limit is never passed, however many ask at once.
 */
async function lockRunningLimits(db: Sql): Promise<{ owner: string; max_running: number }[]> {
  const { rows } = await sql<{ owner: string; max_running: number }>`
    select owner, max_running from quotas where max_running is not null and exists (
      select 1 from lanes join sessions on sessions.lane_id = lanes.id
      where lanes.owner = quotas.owner and state = 'queued'
    ) order by owner for no key update
  `.execute(db)
  return rows
}

/**
 * One statement, which never waits for anybody: rows that others are at are passed over.
 *
 * First it looks, without locking, at the heads of all lanes this node can serve, and shares the free slots out among
 * them: within a priority to the owner with least under way, and of its lanes to the one with least under way; what runs
 * is only counted when there is more than one lane to choose from. Then it takes that many from each lane. Without
 * `limits` it takes nothing when there are any.
 */
async function takeFrom(
  db: Sql,
  nodeId: string,
  { freeSlots, labels, affinity = [], bootId }: LeaseRoom,
  limits: string | undefined,
  now: number,
): Promise<Round & { isLimited: boolean }> {
  const isOpen: RawBuilder<boolean> = limits === undefined ? sql`not (select is_limited from facts)` : sql`true`
  const room: RawBuilder<boolean> =
    limits === undefined
      ? sql`true`
      : sql`not exists (
          select 1 from json_to_recordset(${limits}::json) as l(owner text, max_running int)
          where l.owner = ranked.owner and ranked.owner_running + ranked.owner_rank > l.max_running
        )`
  // With limits all must be counted; else only to choose.
  const isCounted: RawBuilder<boolean> =
    limits === undefined ? sql`(select count(distinct lane_id) > 1 from heads)` : sql`true`
  const { rows } = await sql<LeaseRow>`
    with node as materialized (
      select labels::jsonb as labels, draining,
        ${bootId ?? null}::text is not null and boot_id is distinct from ${bootId ?? null}::text as is_replaced
      from nodes where id = ${nodeId}
    ), facts as materialized (
      select exists(select 1 from quotas where max_running is not null) as is_limited
    ), heads as materialized (
      select lanes.id as lane_id, lanes.owner, q.priority, q.round, q.seq
      from node cross join lanes cross join lateral (
        select priority, round, seq from sessions where state = 'queued' and lane_id = lanes.id
        order by priority desc, round, seq limit ${freeSlots}::int
      ) q
      where not node.draining and not node.is_replaced and ${isOpen}
        and lanes.requires <@ coalesce(${labels === undefined ? null : JSON.stringify(labels)}::jsonb, node.labels)
    ), running as materialized (
      select lane_id, lanes.owner, count(*) as n from sessions join lanes on lanes.id = lane_id
      where state = 'leased' and ${isCounted} group by lane_id, lanes.owner
    ), shares as materialized (
      select lane_id, count(*)::int as n from (
        select lane_id from (
          select lane_id, owner, priority, seq, owner_running,
            row_number() over (partition by owner, priority order by lane_load, seq) as owner_turn,
            row_number() over (partition by owner order by priority desc, lane_load, seq) as owner_rank
          from (
            select heads.*,
              coalesce((select n from running r where r.lane_id = heads.lane_id), 0) + row_number() over (
                partition by heads.lane_id, heads.priority order by heads.round, heads.seq
              ) as lane_load,
              coalesce((select sum(n) from running r where r.owner = heads.owner), 0) as owner_running
            from heads
          ) loaded
        ) ranked
        where ${room}
        order by priority desc, owner_running + owner_turn, seq limit ${freeSlots}::int
      ) chosen group by lane_id
    ), picked as (
      ${affinity.length === 0 ? pickFirst : pickWarm(affinity)}
    ), taken as (
      update sessions set state = 'leased', node_id = ${nodeId}, leased_at = ${now}::float8, beat = beat + 1,
        is_known_there = false
      from picked where sessions.id = picked.id
      returning sessions.id, sessions.task_id, sessions.attempt, picked.priority, picked.round, picked.seq
    ), told as (
      insert into events (type, task_id, data, ts)
      select 'session.state_changed', task_id, json_build_object('session_id', id, 'task_id', task_id, 'attempt', attempt,
        'status', 'DISPATCHING', 'node_id', ${nodeId}::text)::text, ${now}::float8 from taken
    )
    select facts.is_limited, node.draining, node.is_replaced, (select sum(n)::int from shares) as chosen,
      t.id, t.attempt, t.body
    from facts left join node on true left join (
      select taken.*, tasks.body from taken join tasks on tasks.id = taken.task_id
    ) t on true
    order by t.priority desc, t.round, t.seq
  `.execute(db)
  return toRound(rows)
}

interface LeaseRow {
  is_limited: boolean
  /** These two are null when there is no such node. */
  draining: boolean | null
  is_replaced: boolean | null
  chosen: number | null
  id: string | null
  attempt: number
  body: string
}

function toRound(rows: readonly LeaseRow[]): Round & { isLimited: boolean } {
  const { is_limited: isLimited, draining, is_replaced, chosen } = rows[0]!
  const orders = rows.flatMap(({ id, attempt, body }): SessionOrder[] =>
    id === null ? [] : [{ schemaVersion: 1, sessionId: id, attempt, task: JSON.parse(body) as TaskRequest }],
  )
  return { orders, isLimited, chosen: chosen ?? 0, node: toStanding(draining, is_replaced) }
}

/** Both are null when there is no such node. */
export function toStanding(isDraining: boolean | null, isReplaced: boolean | null): NodeStanding {
  if (isDraining === null) return 'unknown'
  if (isReplaced) return 'replaced'
  return isDraining ? 'draining' : 'member'
}
