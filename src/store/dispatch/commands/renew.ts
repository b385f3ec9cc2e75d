import { sql } from 'kysely'
import type { NodeStageMetrics } from '../../../model/node.ts'
import type { Sql } from '../../database.ts'
import { toMembership } from '../internal/membership.ts'
import type { Renewal, RenewalOutcome, RenewResponse } from '../types.ts'

interface RenewRow {
  draining: boolean | null
  is_replaced: boolean | null
  id: string | null
  attempt: number
  kind: RenewalOutcome['kind']
  changed_task: string | null
}

export interface Renewed extends RenewResponse {
  /** Tasks with a session whose status changed. */
  changed: string[]
}

/**
 * Renews all leases of a node, and the node itself, in one statement that skips locked rows: a locked session is reported as
 * held, and the next renewal reports its new state. An unknown node may renew, and is told to join; a replaced process may
 * not renew.
 *
 * `id = any(array(…))` makes the planner use the index whatever size it assumes for the list; a join alone may scan all
 * sessions.
 */
export async function renew(
  db: Sql,
  nodeId: string,
  renewals: readonly Renewal[],
  { metrics, bootId }: { metrics?: NodeStageMetrics; bootId?: string },
  now: number,
): Promise<Renewed> {
  const asked = renewals.map(({ sessionId, attempt, status, progress }) => ({
    id: sessionId,
    attempt,
    status,
    ...progress,
  }))
  const { rows } = await sql<RenewRow>`
    with node as materialized (
      select draining, ${bootId ?? null}::text is not null and boot_id is distinct from ${bootId ?? null}::text as is_replaced
      from nodes where id = ${nodeId}
    ), touched as (
      update nodes set seen_at = ${now}::float8, metrics = coalesce(${metrics === undefined ? null : JSON.stringify(metrics)}::text, metrics)
      where id = ${nodeId} and not exists (select 1 from node where is_replaced)
    ), asked as materialized (
      select * from json_to_recordset(${JSON.stringify(asked)}::json)
        as a(id text, attempt int, status text, calls int, tokens bigint, "oldestVersion" int)
    ), held as materialized (
      select s.id, s.task_id, s.attempt, a.status, a.calls, a.tokens, a."oldestVersion", a.status <> s.status as is_changed
      from asked a join sessions s on s.id = a.id
      where s.id = any(array(select id from asked)) and s.attempt = a.attempt and s.state = 'leased'
        and s.node_id = ${nodeId} and not exists (select 1 from node where is_replaced)
      for no key update of s skip locked
    ), beaten as (
      update sessions set beat = beat + 1, is_known_there = true, status = coalesce(held.status, sessions.status),
        calls = coalesce(held.calls, sessions.calls), tokens = coalesce(held.tokens, sessions.tokens),
        oldest_version = coalesce(held."oldestVersion", sessions.oldest_version)
      from held where sessions.id = held.id
    ), told as (
      insert into events (type, task_id, data, ts)
      select 'session.state_changed', task_id, json_build_object('session_id', id, 'task_id', task_id, 'attempt', attempt,
        'status', status, 'node_id', ${nodeId}::text)::text, ${now}::float8 from held where is_changed
    ), answers as (
      select a.id, a.attempt, case
        when s.attempt = a.attempt and s.state = 'leased' and s.node_id = ${nodeId} then 'held'
        when exists (select 1 from results r where r.session_id = a.id and r.attempt = a.attempt) then 'accepted'
        when exists (
          select 1 from attempts c where c.session_id = a.id and c.attempt = a.attempt and c.ending = 'cancelled'
        ) then 'cancelled'
        else 'lost' end as kind, (select task_id from held where held.id = a.id and is_changed) as changed_task
      from asked a
      left join (select * from sessions where id = any(array(select id from asked))) s on s.id = a.id
    )
    select node.draining, node.is_replaced, answers.* from (select 1) one
    left join node on true left join answers on true
  `.execute(db)
  const { draining, is_replaced } = rows[0]!
  const kinds = new Map(rows.map(({ id, attempt, kind }) => [`${id}/${attempt}`, kind]))
  const outcomes = renewals.map(({ sessionId, attempt }) => {
    return { sessionId, attempt, kind: kinds.get(`${sessionId}/${attempt}`) ?? 'lost' }
  })
  const changed = rows.flatMap(({ changed_task }) => (changed_task === null ? [] : [changed_task]))
  return { outcomes, node: toMembership(draining, is_replaced), changed }
}
