import { sql, type Transaction } from 'kysely'
import type { Sql } from '../../database.ts'
import type { Tables } from '../../database/tables.ts'
import { closeRest, earlyStop, endTask } from '../internal/close-task.ts'
import { lockTask } from '../internal/lock-task.ts'
import { WORK_CHANNEL } from '../internal/work-channel.ts'
import { toUpdate, writeEvents } from '../internal/write-events.ts'
import type { TaskUpdate, UpdateOutcome } from '../types.ts'

export function updateTask(db: Sql, taskId: string, update: TaskUpdate, now: number): Promise<UpdateOutcome> {
  return db.transaction().execute(async (tx): Promise<UpdateOutcome> => {
    const task = await lockTask(tx, taskId)
    if (task === undefined || task.is_tombstone) return 'unknown-task'
    if (task.status !== 'running') return 'over'
    const { priority = task.priority, earlyStop: enough = task.early_stop } = update
    await sql`
      update tasks set priority = ${priority}::int, early_stop = ${enough}::int, updated_at = ${now}::float8
      where id = ${taskId}
    `.execute(tx)
    if (priority !== task.priority) await movePriority(tx, taskId, priority)
    const data = { ...toUpdate(taskId, task), dispatch_priority: priority }
    await writeEvents(tx, [{ type: 'task.updated', data }], now)
    if (enough === null || task.usable < enough) return 'updated'
    await closeRest(tx, taskId, earlyStop(task.usable), now)
    await endTask(tx, taskId, task.valid > 0 ? 'completed' : 'failed', now)
    return 'updated'
  })
}

/** Moves leased sessions too: they may be requeued. At the new priority the task is queued like a new task. */
async function movePriority(tx: Transaction<Tables>, taskId: string, priority: number): Promise<void> {
  await sql`
    with own as materialized (
      select lane_id, coalesce(min(round) filter (where round > 0), 1) as round from sessions
      where task_id = ${taskId} and state <> 'ended' group by lane_id
    ), begin as materialized (
      select own.lane_id, coalesce(h.round, 0) + 1 - own.round as shift from own left join lateral (
        select round from sessions
        where state = 'queued' and lane_id = own.lane_id and priority = ${priority}::int and round > 0
        order by round limit 1
      ) h on true
    ), moved as (
      update sessions set priority = ${priority}::int, round = case round when 0 then 0 else round + begin.shift end
      from begin where task_id = ${taskId} and state <> 'ended' and sessions.lane_id = begin.lane_id
    )
    select pg_notify(${WORK_CHANNEL}, '')
  `.execute(tx)
}
