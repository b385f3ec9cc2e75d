import { sql } from 'kysely'
import type { Failure } from '../../model/failure.ts'
import type { SessionStatus, SessionTiming } from '../../model/session.ts'
import type { TaskRequest } from '../../model/task.ts'
import type { Sql } from '../database.ts'
import type { TaskWord } from '../database/tables.ts'
import type { ResultReference } from '../dispatch.ts'

export interface TaskSummary {
  taskId: string
  status: TaskWord
  harness: string
  model: string | null
  need: number
  ended: number
  valid: number
  usable: number
  failed: number
  cancelled: number
  refills: number
  /** Of the sessions that have one; absent when none has. */
  meanReward?: number
  /** Unix milliseconds. */
  createdAt: number
  updatedAt: number
}

export interface SessionSummary {
  sessionId: string
  taskId: string
  sample: number
  attempt: number
  status: SessionStatus
  nodeId: string | null
  reward?: number
  failure?: Failure
  timing?: SessionTiming
  /** Of the attempt that ended it; absent when that brought none. */
  result?: ResultReference
}

export interface TaskFilter {
  status?: TaskWord
  harness?: string
  /** Unix milliseconds; only those that were touched since. */
  since?: number
  /** Where the page before ended. */
  cursor?: string
  limit: number
}

export async function findTask(db: Sql, taskId: string): Promise<(TaskSummary & { task: TaskRequest }) | undefined> {
  const row = await selectTasks(db).select('body').where('id', '=', taskId).executeTakeFirst()
  return row === undefined ? undefined : { ...toSummary(row), task: JSON.parse(row.body) as TaskRequest }
}

/** Newest first. `next` is absent on the last page. */
export async function listTasks(db: Sql, filter: TaskFilter): Promise<{ tasks: TaskSummary[]; next?: string }> {
  let query = selectTasks(db)
    .orderBy('seq', 'desc')
    .limit(filter.limit + 1)
  if (filter.status !== undefined) query = query.where('status', '=', filter.status)
  if (filter.harness !== undefined) query = query.where('harness', '=', filter.harness)
  if (filter.since !== undefined) query = query.where('updated_at', '>=', filter.since)
  if (filter.cursor !== undefined) query = query.where('seq', '<', Number.parseInt(filter.cursor, 10) || 0)
  const rows = await query.execute()
  const tasks = rows.slice(0, filter.limit)
  const last = tasks.at(-1)
  return { tasks: tasks.map(toSummary), ...(rows.length > tasks.length && last && { next: String(last.seq) }) }
}

export async function listSessions(db: Sql, taskId: string): Promise<SessionSummary[]> {
  const rows = await db
    .selectFrom('sessions')
    .leftJoin('results', (join) =>
      join.onRef('results.session_id', '=', 'sessions.id').onRef('results.attempt', '=', 'sessions.attempt'),
    )
    .selectAll('sessions')
    .select(['path', 'digest', 'bytes'])
    .where('sessions.task_id', '=', taskId)
    .orderBy('sample')
    .execute()
  return rows.map((row) => ({
    sessionId: row.id,
    taskId: row.task_id,
    sample: row.sample,
    attempt: row.attempt,
    status: row.status as SessionStatus,
    nodeId: row.node_id,
    ...(row.reward !== null && { reward: row.reward }),
    ...(row.failure !== null && { failure: JSON.parse(row.failure) as Failure }),
    ...(row.timing !== null && { timing: JSON.parse(row.timing) as SessionTiming }),
    ...(row.path && { result: { path: row.path, digest: row.digest ?? '', bytes: row.bytes ?? 0 } }),
  }))
}

/** How many sessions wait, and how many are being worked on. */
export async function countOpen(db: Sql): Promise<{ queued: number; leased: number }> {
  const { rows } = await sql<{ queued: number; leased: number }>`
    select (select count(*) from sessions where state = 'queued') as queued,
      (select count(*) from sessions where state = 'leased') as leased
  `.execute(db)
  return rows[0] ?? { queued: 0, leased: 0 }
}

function selectTasks(db: Sql) {
  return db
    .selectFrom('tasks')
    .select(['id', 'seq', 'status', 'harness', 'model', 'need', 'ended', 'valid', 'usable', 'failed', 'cancelled'])
    .select(['refills', 'created_at', 'updated_at'])
    .select(sql<number | null>`(select avg(reward) from sessions where sessions.task_id = tasks.id)`.as('mean_reward'))
}

type SummaryRow = Awaited<ReturnType<ReturnType<typeof selectTasks>['execute']>>[number]

function toSummary(row: SummaryRow): TaskSummary {
  const { id, status, harness, model, need, ended, valid, usable, failed, cancelled, refills } = row
  return {
    taskId: id,
    status,
    harness,
    model,
    need,
    ended,
    valid,
    usable,
    failed,
    cancelled,
    refills,
    ...(row.mean_reward !== null && { meanReward: row.mean_reward }),
    createdAt: row.created_at,
    updatedAt: row.updated_at,
  }
}
