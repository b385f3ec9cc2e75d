import { type RawBuilder, sql } from 'kysely'
import type { SessionOrder } from '../../../model/session-order.ts'
import type { TaskRequest } from '../../../model/task.ts'
import type { Sql } from '../../database.ts'
import type { LeaseRoom, NodeStanding } from '../port.ts'
import { withSampleSeed } from '../../../model/sample-seed.ts'
import { pickFirst, pickWarm } from '../internal/pick.ts'
import { createRunning, type Running } from '../internal/running.ts'

export interface Leased {
  orders: SessionOrder[]
  node: NodeStanding
}

/** Others may take what we had chosen in the moment between; then we choose again, but not for ever. */
const MOST_TRIES = 4

/** Kept by the caller between calls. */
export interface LeaseMemory {
  /** Whether somebody has a limit on what runs. It need not be right: it only saves the way that is then not gone. */
  isLimited: boolean
  waiting: Waiting[]
  isBusy: boolean
  running: Running
  /** Unix milliseconds. Read for each statement: a lease may have waited for those before it. */
  now: () => number
}

interface Waiting {
  nodeId: string
  room: LeaseRoom
  resolve(round: Round): void
  reject(error: unknown): void
}

export function createLeaseMemory(monotonic: () => number, now: () => number): LeaseMemory {
  return { isLimited: false, waiting: [], isBusy: false, running: createRunning(monotonic), now }
}

/** Takes the first that wait in the lanes this node can serve. */
export async function lease(db: Sql, nodeId: string, room: LeaseRoom, memory: LeaseMemory): Promise<Leased> {
  const orders: SessionOrder[] = []
  let wanted = room.freeSlots
  for (let tries = 0; ; tries += 1) {
    const round = await leaseOnce(db, nodeId, { ...room, freeSlots: wanted }, memory)
    orders.push(...round.orders)
    wanted -= round.orders.length
    const isMore = round.orders.length < round.chosen && wanted > 0
    if (!isMore || tries >= MOST_TRIES) return { orders, node: round.node }
  }
}

interface Round extends Leased {
  /** How many there seemed to be for us. */
  chosen: number
  /** Of the orders. */
  laneIds: number[]
}

async function leaseOnce(db: Sql, nodeId: string, room: LeaseRoom, memory: LeaseMemory): Promise<Round> {
  if (!memory.isLimited) {
    const counts = await memory.running.read(db)
    const { isLimited, ...round } = await takeFrom(db, nodeId, room, { counts }, memory.now())
    memory.isLimited = isLimited
    memory.running.add(round.laneIds)
    if (!isLimited) return round
  }
  return new Promise((resolve, reject) => {
    memory.waiting.push({ nodeId, room, resolve, reject })
    if (!memory.isBusy) void drain(db, memory)
  })
}

/** More would make the first of them wait for the last. */
const MOST_AT_ONCE = 16

/**
 * Where limits must be minded, leases of this process come one after the other, and those that came while a transaction
 * was under way share the next one: they would only wait for each other, each with a connection in its hands.
 */
async function drain(db: Sql, memory: LeaseMemory): Promise<void> {
  memory.isBusy = true
  while (memory.waiting.length > 0) {
    const batch = memory.waiting.splice(0, MOST_AT_ONCE)
    try {
      const rounds = await db.transaction().execute(async (tx) => {
        const limited = JSON.stringify(await lockLimited(tx))
        const now = memory.now()
        const taken: (Round & { isLimited: boolean })[] = []
        for (const { nodeId, room } of batch) taken.push(await takeFrom(tx, nodeId, room, { limited }, now))
        return taken
      })
      memory.isLimited = rounds.at(-1)!.isLimited
      for (const [i, each] of batch.entries()) each.resolve(rounds[i]!)
    } catch (error) {
      for (const each of batch) each.reject(error)
    }
  }
  memory.isBusy = false
}

/**
 * Of all owners with a limit on what runs and something to run. Whoever leases locks these first, holding nothing, and
 * counts only then, in a statement of its own: so the limit is never passed, however many ask at once.
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
 * One statement, which never waits for anybody: rows that others are at are passed over.
 *
 * First it looks, without locking, at the heads of all lanes this node can serve, and shares the free slots out among
 * them: within a priority to the owner with least under way, and of its lanes to the one with least under way. Then it
 * takes that many from each lane. Without `limited`, the owners whose limits are locked, it takes nothing when anybody
 * has one.
 */
async function takeFrom(
  db: Sql,
  nodeId: string,
  { freeSlots, labels, affinity = [], bootId }: LeaseRoom,
  { limited, counts }: { limited?: string; counts?: string },
  now: number,
): Promise<Round & { isLimited: boolean }> {
  const isOpen: RawBuilder<boolean> = limited === undefined ? sql`not (select is_limited from facts)` : sql`true`
  const room: RawBuilder<boolean> =
    limited === undefined
      ? sql`true`
      : // An owner that we did not lock had nothing to run a moment ago; its turn is the next time.
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
        where ${room}
        order by priority desc, owner_running + owner_turn, seq limit ${freeSlots}::int
      ) chosen group by lane_id
    ), picked as (
      ${affinity.length === 0 ? pickFirst : pickWarm(nodeId, affinity)}
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
  /** These two are null when there is no such node. */
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
  return { orders, laneIds, isLimited, chosen: chosen ?? 0, node: toStanding(draining, is_replaced) }
}

/** Both are null when there is no such node. */
export function toStanding(isDraining: boolean | null, isReplaced: boolean | null): NodeStanding {
  if (isDraining === null) return 'unknown'
  if (isReplaced) return 'replaced'
  return isDraining ? 'draining' : 'member'
}
