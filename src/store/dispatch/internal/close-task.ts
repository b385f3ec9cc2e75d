import { sql, type Transaction } from 'kysely'
import { type Failure, RolloutError } from '../../../model/failure.ts'
import type { Tables, TaskState } from '../../database/tables.ts'

/**
 * Cancels every unfinished session of a task, or only session `only`. A node that runs one is notified when it next renews,
 * and its result is refused. The caller holds the lock on the task. Returns the number of cancelled sessions.
 */
export async function closeRest(
  tx: Transaction<Tables>,
  taskId: string,
  failure: Failure,
  now: number,
  only?: string,
): Promise<number> {
  const written = JSON.stringify(failure)
  const { rows } = await sql`
    with gone as (
      update sessions set state = 'ended', status = 'CANCELLED', verdict = 'cancelled', failure = ${written},
        failure_code = ${failure.code}, ended_at = ${now}::float8
      where task_id = ${taskId} and state <> 'ended' and (${only ?? null}::text is null or id = ${only ?? null}::text)
      returning id, sample, attempt, node_id, leased_at
    ), kept as (
      insert into attempts (session_id, attempt, task_id, place, node_id, ending, status, failure, leased_at, ended_at)
      select gone.id, attempt, ${taskId}::text, endings + row_number() over (order by sample), node_id, 'cancelled', 'CANCELLED',
        ${written}::text, leased_at, ${now}::float8
      from gone, tasks where tasks.id = ${taskId}
    ), counted as (
      update tasks set ended = ended + n, endings = endings + n, cancelled = cancelled + n, updated_at = ${now}::float8
      from (select count(*)::int as n from gone) c where tasks.id = ${taskId} and n > 0
    ), told as (
      insert into events (type, task_id, data, ts)
      select 'session.state_changed', ${taskId}::text, json_build_object('session_id', id, 'task_id', ${taskId}::text,
        'attempt', attempt, 'status', 'CANCELLED', 'node_id', node_id)::text, ${now}::float8 from gone
    )
    select id from gone
  `.execute(tx)
  return rows.length
}

/** `param` of the failure: readers distinguish an early stop from a cancel by it. */
export const EARLY_STOP_FIELD = 'early_stop_min_usable_sessions'

export function earlyStop(usable: number): Failure {
  const message = `${usable} usable sessions are enough for this task; the remaining sessions were cancelled.`
  return new RolloutError('session.cancelled', message, { param: EARLY_STOP_FIELD }).failure
}

/** Ends the task, writes the event and queues the callback to the trainer. */
export async function endTask(tx: Transaction<Tables>, taskId: string, status: TaskState, now: number): Promise<void> {
  const event = JSON.stringify({ task_id: taskId, status })
  await sql`
    with t as (
      update tasks set status = ${status}, updated_at = ${now}::float8, ended_at = ${now}::float8, bytes = coalesce((
        select sum((select coalesce(sum(bytes), 0) from results where session_id = sessions.id)
          + (select coalesce(sum(bytes), 0) from artifacts where session_id = sessions.id))
        from sessions where task_id = ${taskId}
      ), 0)
      where id = ${taskId} returning id, callback_url
    ), c as (
      insert into callbacks (task_id, url, next_at)
      select id, callback_url, ${now}::float8 from t where callback_url is not null
    )
    insert into events (type, task_id, data, ts) values ('task.completed', ${taskId}, ${event}, ${now}::float8)
  `.execute(tx)
}
