import { sql, type Transaction } from 'kysely'
import type { Sql } from '../../database.ts'
import type { Tables, TaskState } from '../../database/tables.ts'
import { closeRest, earlyStop, endTask } from './close-task.ts'
import { type AttemptEnding, decide, type Decision, isHolder, type LockedSession, type LockedTask } from './decision.ts'
import { writeDecisions } from './write-decisions.ts'

export interface Settled {
  taskId: string
  isRefilled: boolean
  taskStatus: TaskState
}

/**
 * Ends attempts and all that depends on them in one transaction. Undefined for an attempt that no longer holds its session.
 * The transaction locks the tasks first, which serialises all endings of a task, then the sessions; it decides under these
 * locks and writes all decisions in one statement.
 *
 * No deadlock is possible: tasks are locked in order of id, every other transaction locks at most one task, and the
 * statements that lease, renew and release sessions skip locked rows.
 */
export function settle(
  db: Sql,
  endings: readonly AttemptEnding[],
  { now, hasRetryDelay }: { now: number; hasRetryDelay: boolean },
): Promise<(Settled | undefined)[]> {
  return db.transaction().execute(async (tx) => {
    const { tasks, sessions } = await lockRows(tx, endings)
    const decided: Decision[] = []
    const answers = endings.map((ending) => {
      const session = sessions.get(ending.sessionId)
      const task = tasks.get(session?.task_id ?? '')
      if (session === undefined || task?.status !== 'running' || !isHolder(ending, session)) return undefined
      const decision = decide(ending, session, task, hasRetryDelay)
      decided.push(decision)
      return { taskId: task.id, isRefilled: decision.verdict === 'refill', taskStatus: task.status }
    })
    await writeDecisions(tx, decided, now)
    for (const task of tasks.values()) if (decided.some((each) => each.task === task)) await endIfOver(tx, task, now)
    return answers
  })
}

/** `of t, s`: locks the task of each pair first. PostgreSQL reads a row again once it is locked, so the values are current. */
async function lockRows(
  tx: Transaction<Tables>,
  endings: readonly AttemptEnding[],
): Promise<{ tasks: Map<string, LockedTask>; sessions: Map<string, LockedSession> }> {
  const ids = JSON.stringify(endings.map(({ sessionId }) => sessionId))
  const { rows } = await sql<LockedTask & LockedSession & { session_id: string; task_status: TaskState }>`
    select t.id, t.status as task_status, t.need, t.ended, t.valid, t.usable, t.endings, t.early_stop, t.max_failures,
      exists(select 1 from quotas where quotas.owner = t.owner and max_running is not null) as is_limited,
      s.id as session_id, s.task_id, s.state, s.status, s.attempt, s.failures, s.beat, s.node_id, s.leased_at
    from sessions s join tasks t on t.id = s.task_id
    where s.id = any(array(select json_array_elements_text(${ids}::json)))
    order by t.id, s.id for no key update of t, s
  `.execute(tx)
  const tasks = new Map<string, LockedTask>()
  const sessions = new Map<string, LockedSession>()
  for (const row of rows) {
    sessions.set(row.session_id, { ...row, id: row.session_id })
    if (!tasks.has(row.id)) tasks.set(row.id, { ...row, status: row.task_status })
  }
  return { tasks, sessions }
}

/** Cancels the remaining sessions of a task that ended early. */
async function endIfOver(tx: Transaction<Tables>, task: LockedTask, now: number): Promise<void> {
  if (task.status === 'running') return
  if (task.ended < task.need) await closeRest(tx, task.id, earlyStop(task.usable), now)
  await endTask(tx, task.id, task.status, now)
}
