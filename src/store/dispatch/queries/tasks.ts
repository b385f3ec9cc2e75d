import { sql } from 'kysely'
import type { Failure } from '../../../model/failure.ts'
import type { SessionStatus, SessionTiming } from '../../../model/session.ts'
import type { TaskRequest } from '../../../model/task.ts'
import type { Sql } from '../../database.ts'
import type { TaskState } from '../../database/tables.ts'
import type { ResultReference } from '../types.ts'
import { cutPage, toNumber } from './page.ts'
import { parseStored, toResult } from './row-fields.ts'

export interface TaskSummary {
  taskId: string
  /** Name of the token that submitted the task; empty without tokens. */
  owner: string
  status: TaskState
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
  /** Number of endings, including those of retried sessions: the last place of `listEndings`. Never decreases. */
  endings: number
  /** Mean over the sessions that have the value; absent if none has. */
  meanReward?: number
  meanTraces?: number
  meanCompletions?: number
  /** Unix milliseconds. */
  createdAt: number
  updatedAt: number
}

export interface TaskFilter {
  status?: TaskState
  harness?: string
  model?: string
  /** Substring of the task id. */
  search?: string
  /** Unix milliseconds: only tasks that changed since. */
  since?: number
  /** `next` of the previous page. */
  cursor?: string
  limit: number
}

export async function findTask(db: Sql, taskId: string): Promise<(TaskSummary & { task: TaskRequest }) | undefined> {
  const row = await selectTasks(db).select('body').where('id', '=', taskId).executeTakeFirst()
  return row === undefined ? undefined : { ...toSummary(row), task: JSON.parse(row.body) as TaskRequest }
}

/**
 * Lists tasks, last change first. A task that changes between two pages moves to the front and is missing on later pages; no
 * task is on two pages. `next` is absent on the last page.
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

/** Lists the ids of all running tasks. */
export async function listRunning(db: Sql): Promise<string[]> {
  const rows = await db.selectFrom('tasks').select('id').where('status', '=', 'running').orderBy('seq').execute()
  return rows.map(({ id }) => id)
}

/** One end of a session; a retried session has several. */
export interface Ending {
  /** Position among the endings of the task, from 1. */
  place: number
  sessionId: string
  attempt: number
  status: SessionStatus
  nodeId: string | null
  reward?: number
  failure?: Failure
  timing?: SessionTiming
  /** The session was not retried since. */
  isCurrent: boolean
  /** Absent if the attempt delivered none. */
  result?: ResultReference
}

/** Lists endings by place. The list only grows at its end. */
export async function listEndings(
  db: Sql,
  taskId: string,
  { after = 0, limit }: { after?: number; limit: number },
): Promise<Ending[]> {
  const rows = await selectEndings(db, taskId).where('place', '>', after).orderBy('place').limit(limit).execute()
  return rows.map(toEnding)
}

/** Lists the last ending of each ended session, up to a place, in order of sample. */
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

/** Returns the submitted task; undefined if it does not exist or was deleted. */
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
    reward: row.reward ?? undefined,
    failure: parseStored(row.failure) as Failure | undefined,
    timing: parseStored(row.timing) as SessionTiming | undefined,
    isCurrent: row.is_current,
    result: toResult(row),
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
    policyVersion: row.policy_version ?? undefined,
    need,
    ended,
    valid,
    usable,
    failed,
    cancelled,
    refills,
    endings,
    meanReward: row.mean_reward ?? undefined,
    meanTraces: row.mean_traces ?? undefined,
    meanCompletions: row.mean_completions ?? undefined,
    createdAt: row.created_at,
    updatedAt: row.updated_at,
  }
}
