import { type RawBuilder, sql } from 'kysely'
import type { Sql } from '../../database.ts'
import { WORK_CHANNEL } from '../internal/work-channel.ts'
import type { Lease } from '../types.ts'

export interface Released extends Lease {
  taskId: string
}

/** Releases the listed attempts that the node holds. */
export function release(
  db: Sql,
  nodeId: string,
  { leases, bootId }: { leases: readonly Lease[]; bootId?: string },
  now: number,
): Promise<Released[]> {
  if (leases.length === 0) return Promise.resolve([])
  const named = JSON.stringify(leases.map(({ sessionId, attempt }) => ({ id: sessionId, attempt })))
  return requeue(db, nodeId, bootId, now, {
    from: sql`json_to_recordset(${named}::json) as a(id text, attempt int) join sessions s on s.id = a.id`,
    where: sql`s.id = any(array(select json_array_elements(${named}::json)->>'id')) and s.attempt = a.attempt`,
  })
}

/** Releases all attempts of the node; with `holding`, only those that it never renewed and does not list: see `LeaseRequest`. */
export async function releaseRest(
  db: Sql,
  nodeId: string,
  { holding, bootId }: { holding?: readonly Lease[]; bootId?: string },
  now: number,
): Promise<Released[]> {
  const named = JSON.stringify((holding ?? []).map(({ sessionId, attempt }) => `${sessionId}/${attempt}`))
  // Runs at every lease and almost never finds any: reading is much cheaper than the update.
  if (holding !== undefined && !(await hasUnknown(db, nodeId, named))) return []
  return requeue(db, nodeId, bootId, now, {
    from: sql`sessions s`,
    where:
      holding === undefined
        ? sql`true`
        : sql`not s.is_known_there
            and s.id || '/' || s.attempt <> all(array(select json_array_elements_text(${named}::json)))`,
  })
}

async function hasUnknown(db: Sql, nodeId: string, named: string): Promise<boolean> {
  const { rows } = await sql`
    select 1 from sessions where state = 'leased' and node_id = ${nodeId} and not is_known_there
      and id || '/' || attempt <> all(array(select json_array_elements_text(${named}::json))) limit 1
  `.execute(db)
  return rows.length > 0
}

/** Requeues sessions before all others with a new attempt number; the released attempt cannot end the session. Skips locked rows. */
async function requeue(
  db: Sql,
  nodeId: string,
  bootId: string | undefined,
  now: number,
  which: { from: RawBuilder<unknown>; where: RawBuilder<unknown> },
): Promise<Released[]> {
  const { rows } = await sql<{ id: string; attempt: number; task_id: string }>`
    with given as materialized (
      select s.id, s.attempt, s.task_id, s.status, s.node_id, s.leased_at from ${which.from}
      where s.state = 'leased' and s.node_id = ${nodeId} and ${which.where} and not exists (
        select 1 from nodes
        where nodes.id = ${nodeId} and ${bootId ?? null}::text is not null and boot_id is distinct from ${bootId ?? null}::text
      )
      for no key update of s skip locked
    ), queued as (
      update sessions set state = 'queued', status = 'REGISTERED', attempt = sessions.attempt + 1, round = 0,
        node_id = null, leased_at = null, calls = null, tokens = null, oldest_version = null
      from given where sessions.id = given.id
    ), kept as (
      insert into attempts (session_id, attempt, task_id, node_id, ending, status, leased_at, ended_at)
      select id, attempt, task_id, node_id, 'released', status, leased_at, ${now}::float8 from given
    ), told as (
      insert into events (type, task_id, data, ts)
      select 'session.state_changed', task_id, json_build_object('session_id', id, 'task_id', task_id, 'attempt',
        attempt + 1, 'status', 'REGISTERED')::text, ${now}::float8
      from given
    ), announced as (
      select pg_notify(${WORK_CHANNEL}, '') from (select 1 from given limit 1) any_given
    )
    select id, attempt, task_id from given where (select count(*) from announced) >= 0
  `.execute(db)
  return rows.map(({ id, attempt, task_id }) => ({ sessionId: id, attempt, taskId: task_id }))
}
