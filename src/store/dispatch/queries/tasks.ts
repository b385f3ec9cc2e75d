import { sql } from 'kysely'
import type { Failure } from '../../../model/failure.ts'
import type { SessionStatus, SessionTiming } from '../../../model/session.ts'
import type { TaskRequest } from '../../../model/task.ts'
import type { Sql } from '../../database.ts'
import type { TaskWord } from '../../database/tables.ts'
import type { ResultReference } from '../port.ts'
import { cutPage, toNumber } from './page.ts'

export interface TaskSummary {
  taskId: string
  /** Who submitted it; empty where nobody has a name. */
  owner: string
  status: TaskWord
  harness: string
  model: string | null
  priority: number
  policyVersion?: number
  need: number
  ended: number
  valid: number
  usable: number
  failed: number
  cancelled: number
  refills: number
  /** How often a session of it has ended: the place of the last of `listEndings`. Never goes down. */
  endings: number
  /** Of the sessions that have one; absent when none has. */
  meanReward?: number
  meanTraces?: number
  meanCompletions?: number
  /** Unix milliseconds. */
  createdAt: number
  updatedAt: number
}

export interface TaskFilter {
  status?: TaskWord
  harness?: string
  model?: string
  /** Found in the id of the task. */
  search?: string
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

/**
 * The ones that changed last come first. One that changes while somebody turns the pages moves to the front, and is not
 * on a later page any more; no task is on two of them. `next` is absent on the last page.
 */
export async function listTasks(db: Sql, filter: TaskFilter): Promise<{ tasks: TaskSummary[]; next?: string }> {
  let query = selectTasks(db)
    .orderBy('updated_at', 'desc')
    .orderBy('seq', 'desc')
    .limit(filter.limit + 1)
  if (filter.status !== undefined) query = query.where('status', '=', filter.status)
  if (filter.harness !== undefined) query = query.where('harness', '=', filter.harness)
  if (filter.model !== undefined) query = query.where('model', '=', filter.model)
  if (filter.search !== undefined) query = query.where(sql<boolean>`strpos(id, ${filter.search}) > 0`)
  if (filter.since !== undefined) query = query.where('updated_at', '>=', filter.since)
  if (filter.cursor !== undefined) {
    const [at = '', seq = ''] = filter.cursor.split('_')
    query = query.where(sql<boolean>`(updated_at, seq) < (${toNumber(at)}::float8, ${toNumber(seq)}::bigint)`)
  }
  const { page, next } = cutPage(await query.execute(), filter.limit, (row) => `${row.updated_at}_${row.seq}`)
  return { tasks: page.map(toSummary), next }
}

/** The ids of all that are under way. */
export async function listRunning(db: Sql): Promise<string[]> {
  const rows = await db.selectFrom('tasks').select('id').where('status', '=', 'running').orderBy('seq').execute()
  return rows.map(({ id }) => id)
}

/** A session of a task came to its end. */
export interface Ending {
  /** Which ending of its task, from one. A session that is made again has another when it ends again. */
  place: number
  sessionId: string
  attempt: number
  status: SessionStatus
  nodeId: string | null
  reward?: number
  failure?: Failure
  timing?: SessionTiming
  /** It has not been made again since. */
  isCurrent: boolean
  /** Absent when it brought none. */
  result?: ResultReference
}

/** In their order; a place once given never changes, and nothing comes to be before it. */
export async function listEndings(
  db: Sql,
  taskId: string,
  { after = 0, limit }: { after?: number; limit: number },
): Promise<Ending[]> {
  const rows = await selectEndings(db, taskId).where('place', '>', after).orderBy('place').limit(limit).execute()
  return rows.map(toEnding)
}

/** The last ending of each session that is over, up to a place, in order of sample. */
export async function listCurrentEndings(
  db: Sql,
  taskId: string,
  { afterSample, upTo, limit }: { afterSample: number; upTo: number; limit: number },
): Promise<(Ending & { sample: number })[]> {
  const rows = await selectEndings(db, taskId)
    .where('place', '<=', upTo)
    .where('sessions.state', '=', 'ended')
    .whereRef('sessions.attempt', '=', 'attempts.attempt')
    .where('sample', '>', afterSample)
    .orderBy('sample')
    .limit(limit)
    .execute()
  return rows.map((row) => ({ ...toEnding(row), sample: row.sample }))
}

/** The task as it was submitted; undefined when there is none, or it was deleted. */
export async function findTaskRequest(db: Sql, taskId: string): Promise<TaskRequest | undefined> {
  const row = await db
    .selectFrom('tasks')
    .select('body')
    .where('id', '=', taskId)
    .where('is_tombstone', '=', false)
    .executeTakeFirst()
  return row && (JSON.parse(row.body) as TaskRequest)
}

function selectEndings(db: Sql, taskId: string) {
  return db
    .selectFrom('attempts')
    .innerJoin('sessions', 'sessions.id', 'attempts.session_id')
    .leftJoin('results', (join) =>
      join.onRef('results.session_id', '=', 'attempts.session_id').onRef('results.attempt', '=', 'attempts.attempt'),
    )
    .selectAll('attempts')
    .select(['sessions.sample', 'results.path', 'results.digest', 'results.bytes'])
    .select(sql<boolean>`sessions.attempt = attempts.attempt and sessions.state = 'ended'`.as('is_current'))
    .where('attempts.task_id', '=', taskId)
    .where('place', 'is not', null)
}

type EndingRow = Awaited<ReturnType<ReturnType<typeof selectEndings>['execute']>>[number]

function toEnding(row: EndingRow): Ending {
  return {
    place: row.place!,
    sessionId: row.session_id,
    attempt: row.attempt,
    status: row.status as SessionStatus,
    nodeId: row.node_id,
    ...(row.reward !== null && { reward: row.reward }),
    ...(row.failure !== null && { failure: JSON.parse(row.failure) as Failure }),
    ...(row.timing !== null && { timing: JSON.parse(row.timing) as SessionTiming }),
    isCurrent: row.is_current,
    ...(row.path && { result: { path: row.path, digest: row.digest!, bytes: row.bytes! } }),
  }
}

function selectTasks(db: Sql) {
  const mean = (column: 'reward' | 'traces' | 'completions') =>
    sql<number | null>`(select avg(${sql.ref(column)})::float8 from sessions where sessions.task_id = tasks.id)`
  return db
    .selectFrom('tasks')
    .select(['id', 'seq', 'owner', 'status', 'harness', 'model', 'priority', 'policy_version', 'need', 'ended'])
    .select(['valid', 'usable', 'failed', 'cancelled', 'refills', 'endings', 'created_at', 'updated_at'])
    .select(mean('reward').as('mean_reward'))
    .select(mean('traces').as('mean_traces'))
    .select(mean('completions').as('mean_completions'))
    .where('is_tombstone', '=', false)
}

type SummaryRow = Awaited<ReturnType<ReturnType<typeof selectTasks>['execute']>>[number]

function toSummary(row: SummaryRow): TaskSummary {
  const { id, owner, status, harness, model, priority, need, ended, valid, usable, failed } = row
  const { cancelled, refills, endings } = row
  return {
    taskId: id,
    owner,
    status,
    harness,
    model,
    priority,
    ...(row.policy_version !== null && { policyVersion: row.policy_version }),
    need,
    ended,
    valid,
    usable,
    failed,
    cancelled,
    refills,
    endings,
    ...(row.mean_reward !== null && { meanReward: row.mean_reward }),
    ...(row.mean_traces !== null && { meanTraces: row.mean_traces }),
    ...(row.mean_completions !== null && { meanCompletions: row.mean_completions }),
    createdAt: row.created_at,
    updatedAt: row.updated_at,
  }
}
