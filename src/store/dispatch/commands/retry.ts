import { sql, type Transaction } from 'kysely'
import type { Sql } from '../../database.ts'
import type { Tables } from '../../database/tables.ts'
import { lockTask } from '../internal/lock-task.ts'
import { fitsQueueLimit, lockQueueLimit } from '../internal/queue-limit.ts'
import { WORK_CHANNEL } from '../internal/work-channel.ts'
import { toUpdate } from '../internal/write-events.ts'
import type { RetriedStatus, SessionRetry, TaskRetry } from '../types.ts'

interface RetryDeps {
  now: number
  samplesPerRound: number
}

/** Selects ended sessions of a task. */
interface Selection {
  statuses?: readonly RetriedStatus[]
  sessionId?: string
}

export async function retryTask(
  db: Sql,
  taskId: string,
  statuses: readonly RetriedStatus[],
  deps: RetryDeps,
): Promise<TaskRetry> {
  return retry(db, taskId, { statuses }, deps)
}

/** `taskId` is absent if the session does not exist. */
export async function retrySession(
  db: Sql,
  sessionId: string,
  deps: RetryDeps,
): Promise<SessionRetry & { taskId?: string }> {
  const session = await findState(db, sessionId)
  if (session === undefined) return { kind: 'unknown-session' }
  const taskId = session.task_id
  const retried = await retry(db, taskId, { sessionId }, deps)
  if (retried.kind === 'unknown-task') return { kind: 'unknown-session' }
  if (retried.kind !== 'retried' || retried.sessions > 0) return { kind: retried.kind, taskId }
  const now = await findState(db, sessionId)
  return { kind: now?.verdict === 'valid' ? 'stands' : 'under-way', taskId }
}

function findState(db: Sql, sessionId: string) {
  return db.selectFrom('sessions').select(['task_id', 'verdict']).where('id', '=', sessionId).executeTakeFirst()
}

async function retry(db: Sql, taskId: string, selection: Selection, deps: RetryDeps): Promise<TaskRetry> {
  const found = await db.selectFrom('tasks').select('owner').where('id', '=', taskId).executeTakeFirst()
  if (found === undefined) return { kind: 'unknown-task' }
  return db.transaction().execute(async (tx): Promise<TaskRetry> => {
    const limit = await lockQueueLimit(tx, found.owner)
    // Locks the policy version, so that it cannot advance before the sessions are queued.
    const { rows } = await sql<{ version: number }>`select version from policy for share`.execute(tx)
    const task = await lockTask(tx, taskId)
    if (task === undefined || task.is_tombstone) return { kind: 'unknown-task' }
    const sessions = await findRetryable(tx, taskId, selection)
    if (sessions.length === 0) return { kind: 'retried', sessions: 0, taskStatus: task.status }
    const { policy_version: made, staleness_limit: most } = task
    if (made !== null && most !== null && made + most < (rows[0]?.version ?? 0)) return { kind: 'stale' }
    const usable = task.usable - sessions.filter(({ is_usable }) => is_usable).length
    if (task.early_stop !== null && usable >= task.early_stop) return { kind: 'enough' }
    if (!(await fitsQueueLimit(tx, found.owner, limit, sessions.length))) return { kind: 'over-quota' }
    const event = {
      ...toUpdate(taskId, { ...task, ended: task.ended - sessions.length }),
      reopened: task.status !== 'running',
    }
    await queueAgain(tx, taskId, sessions, { ...deps, event })
    return { kind: 'retried', sessions: sessions.length, taskStatus: 'running' }
  })
}

interface RetryableSession {
  id: string
  is_usable: boolean
  verdict: 'valid' | 'failed' | 'cancelled'
}

/** A result that the agent caused is final, except a timeout that the request lists. */
async function findRetryable(
  tx: Transaction<Tables>,
  taskId: string,
  selection: Selection,
): Promise<RetryableSession[]> {
  const { statuses, sessionId } = selection
  const { rows } = await sql<RetryableSession>`
    select id, is_usable, verdict from sessions where task_id = ${taskId} and state = 'ended'
      and (${sessionId ?? null}::text is null or id = ${sessionId ?? null}::text)
      and case when ${statuses === undefined}::boolean then verdict <> 'valid' else (verdict <> 'valid' or status = 'TIMEOUT')
        and status = any(array(select json_array_elements_text(${JSON.stringify(statuses ?? [])}::json))) end
    order by sample
  `.execute(tx)
  return rows
}

/** Queues the sessions like those of a new task: many retries must not delay other tasks. */
async function queueAgain(
  tx: Transaction<Tables>,
  taskId: string,
  sessions: readonly RetryableSession[],
  { now, samplesPerRound, event }: RetryDeps & { event: object },
): Promise<void> {
  const count = (verdict: RetryableSession['verdict']) => sessions.filter((each) => each.verdict === verdict).length
  const usable = sessions.filter(({ is_usable }) => is_usable).length
  const rows = sessions.map(({ id }, i) => ({ id, round: Math.floor(i / samplesPerRound) }))
  await sql`
    with a as materialized (
      select * from json_to_recordset(${JSON.stringify(rows)}::json) as a(id text, round int)
    ), begin as materialized (
      select coalesce((
        select round from sessions
        where state = 'queued' and round > 0 and priority = t.priority and lane_id = (
          select lane_id from sessions where id = (select id from a limit 1)
        ) order by round limit 1
      ), 0) + 1 as round, t.priority from tasks t where id = ${taskId}
    ), s as (
      update sessions set state = 'queued', status = 'REGISTERED', attempt = attempt + 1, failures = 0,
        priority = begin.priority, round = begin.round + a.round, node_id = null, leased_at = null, ended_at = null,
        calls = null, tokens = null, oldest_version = null, verdict = null, is_usable = false, reward = null, traces = null, completions = null,
        failure = null, failure_code = null, timing = null
      from a, begin where sessions.id = a.id and sessions.id = any(array(select id from a))
      returning sessions.id, attempt
    ), t as (
      update tasks set status = 'running', ended = ended - ${sessions.length}::int, valid = valid - ${count('valid')}::int,
        usable = usable - ${usable}::int, failed = failed - ${count('failed')}::int,
        cancelled = cancelled - ${count('cancelled')}::int, updated_at = ${now}::float8, ended_at = null
      where id = ${taskId}
    ), c as (
      -- The task will end again, with a new callback.
      delete from callbacks where task_id = ${taskId} and state = 'waiting'
    ), e as (
      insert into events (type, task_id, data, ts)
      select 'session.state_changed', ${taskId}::text, json_build_object('session_id', id, 'task_id', ${taskId}::text,
        'attempt', attempt, 'status', 'REGISTERED')::text, ${now}::float8 from s
      union all select 'task.updated', ${taskId}::text, ${JSON.stringify(event)}::text, ${now}::float8
    )
    select pg_notify(${WORK_CHANNEL}, '')
  `.execute(tx)
}
