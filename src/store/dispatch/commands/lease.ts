import { type RawBuilder, sql } from 'kysely'
import { withSampleSeed } from '../../../model/sample-seed.ts'
import type { SessionOrder } from '../../../model/session-order.ts'
import type { TaskRequest } from '../../../model/task.ts'
import type { Sql } from '../../database.ts'
import { toMembership } from '../internal/membership.ts'
import { pickByAffinity, pickFirst } from '../internal/pick.ts'
import { createRunningCounts, type RunningCounts } from '../internal/running-counts.ts'
import type { LeaseRequest, NodeMembership } from '../types.ts'

export interface Leased {
  orders: SessionOrder[]
  node: NodeMembership
}

/** Another server may lease the chosen sessions first; then the choice is repeated, up to this often. */
const MAX_TRIES = 4

/** State of one server between calls. */
export interface LeaseState {
  /** Some owner has a limit on running sessions. May be outdated: then one statement runs in vain. */
  isLimited: boolean
  waiting: Waiting[]
  isBusy: boolean
  running: RunningCounts
  /** Unix milliseconds. Read for each statement: a lease may have waited in the queue. */
  now: () => number
}

interface Waiting {
  nodeId: string
  request: LeaseRequest
  resolve(round: Round): void
  reject(error: unknown): void
}

export function createLeaseState(monotonic: () => number, now: () => number): LeaseState {
  return { isLimited: false, waiting: [], isBusy: false, running: createRunningCounts(monotonic), now }
}

/** Leases the first queued sessions of the lanes that this node can serve. */
export async function lease(db: Sql, nodeId: string, request: LeaseRequest, state: LeaseState): Promise<Leased> {
  const orders: SessionOrder[] = []
  let freeSlots = request.freeSlots
  for (let tries = 0; ; tries += 1) {
    const round = await leaseOnce(db, nodeId, { ...request, freeSlots }, state)
    orders.push(...round.orders)
    freeSlots -= round.orders.length
    const isMore = round.orders.length < round.chosen && freeSlots > 0
    if (!isMore || tries >= MAX_TRIES) return { orders, node: round.node }
  }
}

interface Round extends Leased {
  /** Sessions that were chosen before locking. */
  chosen: number
  /** Lanes of the orders. */
  laneIds: number[]
}

async function leaseOnce(db: Sql, nodeId: string, request: LeaseRequest, state: LeaseState): Promise<Round> {
  if (!state.isLimited) {
    const counts = await state.running.read(db)
    const { isLimited, ...round } = await leaseFrom(db, nodeId, request, { counts }, state.now())
    state.isLimited = isLimited
    state.running.add(round.laneIds)
    if (!isLimited) return round
  }
  return new Promise((resolve, reject) => {
    state.waiting.push({ nodeId, request, resolve, reject })
    if (!state.isBusy) void drain(db, state)
  })
}

/** Limits how long the first request of a batch waits for the last. */
const MAX_BATCH = 16

/**
 * With limits on running sessions, lease requests of this process run one after the other, and those that arrive while a
 * transaction runs share the next one: in parallel they would wait for each other's locks, each holding a connection.
 */
async function drain(db: Sql, state: LeaseState): Promise<void> {
  state.isBusy = true
  while (state.waiting.length > 0) {
    const batch = state.waiting.splice(0, MAX_BATCH)
    try {
      const rounds = await db.transaction().execute(async (tx) => {
        const limited = JSON.stringify(await lockLimited(tx))
        const now = state.now()
        const leased: (Round & { isLimited: boolean })[] = []
        for (const { nodeId, request } of batch) leased.push(await leaseFrom(tx, nodeId, request, { limited }, now))
        return leased
      })
      state.isLimited = rounds.at(-1)!.isLimited
      for (const [i, each] of batch.entries()) each.resolve(rounds[i]!)
    } catch (error) {
      for (const each of batch) each.reject(error)
    }
  }
  state.isBusy = false
}

/**
 * Locks the quotas of all owners with a limit on running sessions and a queued session. These are the first locks of the
 * transaction, and the count follows in a separate statement: so concurrent requests never exceed the limit.
 */
async function lockLimited(db: Sql): Promise<{ owner: string }[]> {
  const { rows } = await sql<{ owner: string }>`
    select owner from quotas where max_running is not null and exists (
      select 1 from lanes where lanes.owner = quotas.owner
        and (select true from sessions where state = 'queued' and lane_id = lanes.id limit 1)
    ) order by owner for no key update
  `.execute(db)
  return rows
}

/**
 * One statement that skips locked rows and so never waits.
 *
 * It reads the heads of all lanes that this node can serve without locking, and divides the free slots among them: within a
 * priority to the owner with the fewest running sessions, and within the owner to the lane with the fewest. Then it leases
 * that many sessions from each lane. Without `limited` (the owners whose limits are locked) it leases nothing if any owner
 * has a limit.
 */
async function leaseFrom(
  db: Sql,
  nodeId: string,
  { freeSlots, labels, affinity = [], bootId }: LeaseRequest,
  { limited, counts }: { limited?: string; counts?: string },
  now: number,
): Promise<Round & { isLimited: boolean }> {
  const isOpen: RawBuilder<boolean> = limited === undefined ? sql`not (select is_limited from facts)` : sql`true`
  const fitsLimit: RawBuilder<boolean> =
    limited === undefined
      ? sql`true`
      : // An owner that is not locked had nothing queued before; the next lease serves it.
        sql`not exists (
          select 1 from quotas left join json_to_recordset(${limited}::json) as l(owner text) on l.owner = quotas.owner
          where quotas.owner = ranked.owner and max_running is not null
            and (l.owner is null or ranked.owner_running + ranked.owner_rank > max_running)
        )`
  const running: RawBuilder<unknown> =
    limited === undefined
      ? sql`select * from json_to_recordset(${counts ?? '[]'}::json) as r(lane_id int, owner text, n int)`
      : sql`select lane_id, lanes.owner, count(*) as n from sessions join lanes on lanes.id = lane_id
          where state = 'leased' group by lane_id, lanes.owner`
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
      ${running}
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
        where ${fitsLimit}
        order by priority desc, owner_running + owner_turn, seq limit ${freeSlots}::int
      ) chosen group by lane_id
    ), picked as (
      ${affinity.length === 0 ? pickFirst : pickByAffinity(nodeId, affinity)}
    ), taken as (
      update sessions set state = 'leased', node_id = ${nodeId}, leased_at = ${now}::float8, beat = beat + 1,
        is_known_there = false
      from picked where sessions.id = picked.id
      returning sessions.id, sessions.task_id, sessions.lane_id, sessions.attempt, sessions.sample, picked.priority, picked.round, picked.seq
    ), told as (
      insert into events (type, task_id, data, ts)
      select 'session.state_changed', task_id, json_build_object('session_id', id, 'task_id', task_id, 'attempt', attempt,
        'status', 'DISPATCHING', 'node_id', ${nodeId}::text)::text, ${now}::float8 from taken
    )
    select facts.is_limited, node.draining, node.is_replaced, (select sum(n)::int from shares) as chosen,
      t.id, t.attempt, t.lane_id, t.sample, t.body
    from facts left join node on true left join (
      select taken.*, tasks.body from taken join tasks on tasks.id = taken.task_id
    ) t on true
    order by t.priority desc, t.round, t.seq
  `.execute(db)
  return toRound(rows)
}

interface LeaseRow {
  is_limited: boolean
  /** Null if the node does not exist, like `is_replaced`. */
  draining: boolean | null
  is_replaced: boolean | null
  chosen: number | null
  id: string | null
  lane_id: number
  attempt: number
  sample: number
  body: string
}

function toRound(rows: readonly LeaseRow[]): Round & { isLimited: boolean } {
  const { is_limited: isLimited, draining, is_replaced, chosen } = rows[0]!
  const orders = rows.flatMap(({ id, attempt, sample, body }): SessionOrder[] => {
    if (id === null) return []
    return [{ schemaVersion: 1, sessionId: id, attempt, task: withSampleSeed(JSON.parse(body) as TaskRequest, sample) }]
  })
  const laneIds = rows.flatMap(({ id, lane_id }) => (id === null ? [] : [lane_id]))
  return { orders, laneIds, isLimited, chosen: chosen ?? 0, node: toMembership(draining, is_replaced) }
}
