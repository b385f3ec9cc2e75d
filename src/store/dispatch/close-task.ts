import { sql, type Transaction } from 'kysely'
import { RolloutError } from '../../model/failure.ts'
import type { Tables, TaskWord } from '../database/tables.ts'
import { writeEvents } from './events.ts'

/**
 * Ends every session of a task that is not over yet. A node that is at one of them learns it when it next renews, and
 * what it still brings is refused. The caller holds the lock on the task.
 */
export async function closeRest(
  tx: Transaction<Tables>,
  taskId: string,
  why: string,
  now: number,
  only?: string,
): Promise<number> {
  const failure = JSON.stringify(new RolloutError('session.cancelled', why).failure)
  const { rows } = await sql`
    with gone as (
      update sessions set state = 'ended', status = 'CANCELLED', failure = ${failure}, ended_at = ${now}::float8
      where task_id = ${taskId} and state <> 'ended' and (${only ?? null}::text is null or id = ${only ?? null}::text)
      returning id, attempt, node_id, leased_at
    ), kept as (
      insert into attempts (session_id, attempt, node_id, ending, failure, leased_at, ended_at)
      select id, attempt, node_id, 'cancelled', ${failure}::text, leased_at, ${now}::float8
      from gone where node_id is not null
    ), counted as (
      update tasks set ended = ended + n, cancelled = cancelled + n, updated_at = ${now}::float8
      from (select count(*)::int as n from gone) c where tasks.id = ${taskId} and n > 0
    ), told as (
      insert into events (type, data, ts)
      select 'session.state_changed', json_build_object('session_id', id, 'task_id', ${taskId}::text, 'attempt', attempt,
        'status', 'CANCELLED', 'node_id', node_id)::text, ${now}::float8 from gone
    )
    select id from gone
  `.execute(tx)
  return rows.length
}

/** The task is over: that is told, and the trainer will be called back. */
export async function endTask(tx: Transaction<Tables>, taskId: string, status: TaskWord, now: number): Promise<void> {
  await sql`
    with t as (
      update tasks set status = ${status}, updated_at = ${now}::float8 where id = ${taskId} returning id, callback_url
    )
    insert into callbacks (task_id, url, next_at)
    select id, callback_url, ${now}::float8 from t where callback_url is not null
  `.execute(tx)
  await writeEvents(tx, [{ type: 'task.completed', data: { task_id: taskId, status } }], now)
}
