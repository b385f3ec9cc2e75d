import { sql, type Transaction } from 'kysely'
import type { Tables } from '../../database/tables.ts'
import type { Decision } from './decision.ts'
import { WORK_CHANNEL } from './work-channel.ts'
import { toUpdate } from './write-events.ts'

/** Writes sessions, attempts, results, task counts and events of all decisions in one statement. */
export async function writeDecisions(
  tx: Transaction<Tables>,
  decisions: readonly Decision[],
  now: number,
): Promise<void> {
  if (decisions.length === 0) return
  await sql`
    with d as (
      select * from json_to_recordset(${JSON.stringify(decisions.map(toRow))}::json) as d(id text, task_id text,
        attempt int, place int, node_id text, leased_at float8, ending text, status text, again int, waits text, valid int,
        usable int, failed int, reward float8, traces int, completions int, failure text, failure_code text, timing text,
        path text, digest text, bytes bigint, event text)
    ), s as (
      update sessions set
        state = case again when 1 then d.waits else 'ended' end,
        status = case again when 1 then 'REGISTERED' else d.status end,
        attempt = sessions.attempt + again,
        round = case again when 1 then 0 else round end,
        failures = failures + 1 - valid,
        node_id = case again when 1 then null else d.node_id end,
        leased_at = case again when 1 then null else d.leased_at end,
        ended_at = case again when 1 then null else ${now}::float8 end,
        calls = case again when 1 then null else calls end,
        tokens = case again when 1 then null else tokens end,
        oldest_version = case again when 1 then null else oldest_version end,
        verdict = case when again = 1 then null when valid = 1 then 'valid' else 'failed' end,
        is_usable = d.usable = 1,
        reward = d.reward, traces = d.traces, completions = d.completions,
        failure = d.failure, failure_code = d.failure_code, timing = d.timing
      from d where sessions.id = d.id and sessions.id = any(array(select id from d))
    ), a as (
      insert into attempts (session_id, attempt, task_id, place, node_id, ending, status, failure, reward, timing,
        leased_at, ended_at)
      select id, attempt, task_id, place, node_id, ending, status, failure, reward, timing, leased_at, ${now}::float8
      from d
    ), r as (
      insert into results (session_id, attempt, path, digest, bytes)
      select id, attempt, path, digest, bytes from d where ending = 'accepted'
    ), t as (
      update tasks set ended = ended + c.n - c.again, endings = endings + c.n - c.again, valid = tasks.valid + c.valid,
        usable = tasks.usable + c.usable, failed = tasks.failed + c.failed, refills = refills + c.again,
        updated_at = ${now}::float8
      from (
        select task_id, count(*) as n, sum(again) as again, sum(valid) as valid, sum(usable) as usable,
          sum(failed) as failed
        from d group by task_id
      ) c where tasks.id = c.task_id and tasks.id = any(array(select task_id from d))
    )
    insert into events (type, task_id, data, ts)
    select 'session.state_changed', task_id, event, ${now}::float8 from d
    union all select 'task.updated', task_id, event, ${now}::float8
    from json_to_recordset(${JSON.stringify(toUpdates(decisions))}::json) as u(task_id text, event text)
  `.execute(tx)
  await writeArtifacts(tx, decisions)
  const mayLeaseMore = decisions.some(({ verdict, isResting, task }) => {
    return task.is_limited || (verdict === 'refill' && !isResting)
  })
  if (mayLeaseMore) await sql`select pg_notify(${WORK_CHANNEL}, '')`.execute(tx)
}

async function writeArtifacts(tx: Transaction<Tables>, decisions: readonly Decision[]): Promise<void> {
  const rows = decisions.flatMap(({ ending: { sessionId, attempt, artifacts = [] } }) =>
    artifacts.map(({ path, storedPath, bytes, digest, isCut }) => ({
      session_id: sessionId,
      attempt,
      path,
      stored_path: storedPath,
      bytes,
      digest,
      is_cut: isCut,
    })),
  )
  if (rows.length === 0) return
  await sql`
    insert into artifacts select * from json_to_recordset(${JSON.stringify(rows)}::json) as a(session_id text,
      attempt int, path text, stored_path text, bytes bigint, digest text, is_cut boolean)
  `.execute(tx)
}

/** One event for each task that still runs; `endTask` writes the event of a task that ended. */
function toUpdates(decisions: readonly Decision[]): { task_id: string; event: string }[] {
  const tasks = new Set(decisions.map(({ task }) => task))
  return [...tasks]
    .filter(({ status }) => status === 'running')
    .map((task) => ({ task_id: task.id, event: JSON.stringify(toUpdate(task.id, task)) }))
}

function toRow({ ending, verdict, isUsable, isResting, place, session }: Decision) {
  const { id, task_id, attempt, node_id, leased_at } = session
  const { kind, status, reward, traces, completions, failure, timing, result } = ending
  const event = { session_id: id, task_id, node_id, attempt, status, reward, refilled: verdict === 'refill' }
  return {
    id,
    task_id,
    attempt,
    place,
    node_id,
    leased_at,
    status,
    reward,
    traces,
    completions,
    ending: kind,
    again: verdict === 'refill' ? 1 : 0,
    waits: isResting ? 'resting' : 'queued',
    valid: verdict === 'valid' ? 1 : 0,
    usable: isUsable ? 1 : 0,
    failed: verdict === 'failed' ? 1 : 0,
    failure: failure && JSON.stringify(failure),
    failure_code: failure?.code,
    timing: timing && JSON.stringify(timing),
    path: result?.path ?? '',
    digest: result?.digest ?? '',
    bytes: result?.bytes ?? 0,
    event: JSON.stringify(event),
  }
}
