import { sql } from 'kysely'
import type { SessionOrder } from '../../model/session-order.ts'
import type { TaskRequest } from '../../model/task.ts'
import type { Sql } from '../database.ts'
import type { Lease, Renewal, RenewalOutcome } from '../dispatch.ts'
import { loseSession } from './settle.ts'
import { WORK_CHANNEL } from './work-channel.ts'

/**
 * Takes the first that wait in the lanes this node can serve. One statement, which never waits for anybody: rows that
 * others are at are passed over. Where the rounds of a priority have come to is written down on the way, if nobody else
 * is just doing so; should that be missed, new tasks are served a little too early.
 */
export async function lease(
  db: Sql,
  nodeId: string,
  room: { labels: readonly string[]; freeSlots: number },
  now: number,
): Promise<SessionOrder[]> {
  if (room.freeSlots <= 0) return []
  const { rows } = await sql<{ id: string; attempt: number; body: string }>`
    with picked as (
      select s.id, s.priority, s.round, s.seq
      from lanes cross join lateral (
        select id, priority, round, seq from sessions
        where state = 'queued' and lane_id = lanes.id
        order by priority desc, round, seq
        limit ${room.freeSlots}::int for no key update skip locked
      ) s
      where lanes.requires <@ ${JSON.stringify(room.labels)}::jsonb
        and not exists (select 1 from nodes where nodes.id = ${nodeId} and draining)
      order by s.priority desc, s.round, s.seq limit ${room.freeSlots}::int
    ), taken as (
      update sessions set state = 'leased', node_id = ${nodeId}, leased_at = ${now}::float8, beat = beat + 1
      from picked where sessions.id = picked.id
      returning sessions.id, sessions.task_id, sessions.attempt, picked.priority, picked.round, picked.seq
    ), reached as (
      update rounds set round = t.round
      from (select priority, max(round) as round from taken group by priority) t
      where rounds.priority = t.priority and rounds.round < t.round and rounds.priority in (
        select r.priority from rounds r
        where r.priority in (select priority from taken) for no key update skip locked
      )
    ), told as (
      insert into events (type, data, ts)
      select 'session.state_changed', json_build_object('session_id', id, 'task_id', task_id, 'attempt', attempt,
        'status', 'DISPATCHING', 'node_id', ${nodeId}::text)::text, ${now}::float8 from taken
    )
    select taken.id, taken.attempt, tasks.body from taken join tasks on tasks.id = taken.task_id
    order by taken.priority desc, taken.round, taken.seq
  `.execute(db)
  return rows.map(({ id, attempt, body }) => {
    return { schemaVersion: 1, sessionId: id, attempt, task: JSON.parse(body) as TaskRequest }
  })
}

/**
 * `id = any(array(…))` finds rows by the index whatever the planner thinks of the size of a list: joined to it alone, it
 * may read all the sessions there ever were.
 *
 * One statement for all that a node holds, which never waits either: a row that somebody else is just changing is taken
 * as held, and the next renewal tells what became of it.
 */
export async function renew(db: Sql, nodeId: string, renewals: readonly Renewal[]): Promise<RenewalOutcome[]> {
  if (renewals.length === 0) return []
  const { rows } = await sql<{ id: string; attempt: number; kind: RenewalOutcome['kind'] }>`
    with asked as (
      select * from json_to_recordset(${toRows(renewals)}::json) as a(id text, attempt int, status text)
    ), held as (
      select s.id, a.status from asked a join sessions s on s.id = a.id
      where s.id = any(array(select id from asked)) and s.attempt = a.attempt and s.state = 'leased' and s.node_id = ${nodeId}
      for no key update of s skip locked
    ), beaten as (
      update sessions set beat = beat + 1, status = coalesce(held.status, sessions.status)
      from held where sessions.id = held.id
    )
    select a.id, a.attempt, case
      when s.attempt = a.attempt and s.state = 'leased' and s.node_id = ${nodeId} then 'held'
      when exists (select 1 from results r where r.session_id = a.id and r.attempt = a.attempt) then 'accepted'
      when s.attempt = a.attempt and s.status = 'CANCELLED' then 'cancelled'
      else 'lost' end as kind
    from asked a
    left join (select * from sessions where id = any(array(select id from asked))) s on s.id = a.id
  `.execute(db)
  const kinds = new Map(rows.map(({ id, attempt, kind }) => [`${id}/${attempt}`, kind]))
  return renewals.map(({ sessionId, attempt }) => {
    return { sessionId, attempt, kind: kinds.get(`${sessionId}/${attempt}`) ?? 'lost' }
  })
}

/** Back into the queue, in its old place, for whoever comes next: the attempt that gives it up can no longer end it. */
export async function release(db: Sql, nodeId: string, leases: readonly Lease[], now: number): Promise<Lease[]> {
  if (leases.length === 0) return []
  const { rows } = await sql<{ id: string; attempt: number }>`
    with given as (
      select s.id, s.attempt, s.node_id, s.leased_at
      from json_to_recordset(${toRows(leases)}::json) as a(id text, attempt int)
      join sessions s on s.id = a.id
      where s.id = any(array(select json_array_elements(${toRows(leases)}::json)->>'id')) and s.attempt = a.attempt and s.state = 'leased' and s.node_id = ${nodeId}
      for no key update of s skip locked
    ), queued as (
      update sessions set state = 'queued', status = 'REGISTERED', attempt = sessions.attempt + 1, node_id = null,
        leased_at = null
      from given where sessions.id = given.id
    ), kept as (
      insert into attempts (session_id, attempt, node_id, ending, leased_at, ended_at)
      select id, attempt, node_id, 'released', leased_at, ${now}::float8 from given
    ), told as (
      insert into events (type, data, ts)
      select 'session.state_changed', json_build_object('session_id', s.id, 'task_id', s.task_id, 'attempt',
        given.attempt + 1, 'status', 'REGISTERED')::text, ${now}::float8
      from given join sessions s on s.id = given.id
    ), announced as (
      select pg_notify(${WORK_CHANNEL}, '') from (select 1 from given limit 1) any_given
    )
    select id, attempt from given where (select count(*) from announced) >= 0
  `.execute(db)
  return rows.map(({ id, attempt }) => ({ sessionId: id, attempt }))
}

export async function loseNode(db: Sql, nodeId: string, now: number): Promise<number> {
  const leased = await db
    .selectFrom('sessions')
    .select(['id', 'attempt', 'beat'])
    .where('state', '=', 'leased')
    .where('node_id', '=', nodeId)
    .orderBy('id')
    .execute()
  let lost = 0
  for (const { id, attempt } of leased) {
    if (await loseSession(db, { sessionId: id, attempt }, now)) lost += 1
  }
  return lost
}

function toRows(leases: readonly (Lease & { status?: string })[]): string {
  return JSON.stringify(leases.map(({ sessionId, attempt, status }) => ({ id: sessionId, attempt, status })))
}
