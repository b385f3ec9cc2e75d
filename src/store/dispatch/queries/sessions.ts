import { type Selectable, sql } from 'kysely'
import type { Failure, FailureCode } from '../../../model/failure.ts'
import type { SessionStatus, SessionTiming } from '../../../model/session.ts'
import type { Sql } from '../../database.ts'
import type { Tables } from '../../database/tables.ts'
import type { ArtifactReference, ResultReference, SessionProgress } from '../port.ts'
import { cutPage, toNumber } from './page.ts'

export interface SessionSummary {
  sessionId: string
  taskId: string
  sample: number
  /** Of the attempt that is under way, was the last, or, for one that waits, will be next. */
  attempt: number
  /** `resting`: infrastructure spoilt it, and it is queued again in a while. */
  state: 'queued' | 'leased' | 'resting' | 'ended'
  status: SessionStatus
  nodeId: string | null
  reward?: number
  failure?: Failure
  timing?: SessionTiming
  progress?: SessionProgress
  /** Of the attempt that ended it; absent when that brought none. */
  result?: ResultReference
}

export interface AttemptSummary {
  attempt: number
  /** Null: it was cancelled before anybody had it. */
  nodeId: string | null
  /** Absent while it is under way. */
  ending?: 'accepted' | 'lost' | 'released' | 'cancelled'
  failure?: Failure
  /** What that attempt brought, also when it was spoilt. */
  result?: ResultReference
  /** Unix milliseconds. */
  leasedAt?: number
  endedAt?: number
}

export interface SessionFilter {
  status?: readonly SessionStatus[]
  taskId?: string
  nodeId?: string
  harness?: string
  failure?: FailureCode
  /** Where the page before ended. */
  cursor?: string
  limit: number
}

export interface SessionPage {
  sessions: SessionSummary[]
  /** Absent on the last page. */
  next?: string
}

/** Of all tasks, newest first: ids sort by the time they were made at. */
export async function listSessions(db: Sql, filter: SessionFilter): Promise<SessionPage> {
  const { status, taskId, nodeId, harness, failure, cursor, limit } = filter
  let query = selectSessions(db)
    .orderBy('sessions.id', 'desc')
    .limit(limit + 1)
  if (status !== undefined) query = query.where('sessions.status', 'in', status)
  if (taskId !== undefined) query = query.where('sessions.task_id', '=', taskId)
  if (nodeId !== undefined) query = query.where('sessions.node_id', '=', nodeId)
  if (failure !== undefined) query = query.where('failure_code', '=', failure)
  if (harness !== undefined) {
    query = query.where((where) =>
      where.exists(
        where
          .selectFrom('tasks')
          .select('tasks.id')
          .whereRef('tasks.id', '=', 'sessions.task_id')
          .where('tasks.harness', '=', harness),
      ),
    )
  }
  if (cursor !== undefined) query = query.where('sessions.id', '<', cursor)
  const { page, next } = cutPage(await query.execute(), limit, ({ id }) => id)
  return { sessions: page.map(toSummary), next }
}

/** Of one task, in order of their sample. */
export async function listTaskSessions(
  db: Sql,
  taskId: string,
  { status, cursor, limit = 10_000 }: { status?: SessionStatus; cursor?: string; limit?: number } = {},
): Promise<SessionPage> {
  let query = selectSessions(db)
    .where('sessions.task_id', '=', taskId)
    .orderBy('sample')
    .limit(limit + 1)
  if (status !== undefined) query = query.where('sessions.status', '=', status)
  if (cursor !== undefined) query = query.where('sample', '>', toNumber(cursor))
  const { page, next } = cutPage(await query.execute(), limit, ({ sample }) => String(sample))
  return { sessions: page.map(toSummary), next }
}

/** With all attempts at it, the one under way included. */
export async function findSession(
  db: Sql,
  sessionId: string,
): Promise<(SessionSummary & { attempts: AttemptSummary[] }) | undefined> {
  const row = await selectSessions(db).where('sessions.id', '=', sessionId).executeTakeFirst()
  if (row === undefined) return undefined
  const over = await db
    .selectFrom('attempts')
    .leftJoin('results', (join) =>
      join.onRef('results.session_id', '=', 'attempts.session_id').onRef('results.attempt', '=', 'attempts.attempt'),
    )
    .selectAll('attempts')
    .select(['path', 'digest', 'bytes'])
    .where('attempts.session_id', '=', sessionId)
    .orderBy('attempts.attempt')
    .execute()
  const attempts = over.map((each): AttemptSummary => ({
    attempt: each.attempt,
    nodeId: each.node_id,
    ending: each.ending,
    ...(each.failure !== null && { failure: JSON.parse(each.failure) as Failure }),
    ...(each.path && { result: { path: each.path, digest: each.digest!, bytes: each.bytes! } }),
    ...(each.leased_at !== null && { leasedAt: each.leased_at }),
    endedAt: each.ended_at,
  }))
  if (row.state === 'leased') {
    attempts.push({ attempt: row.attempt, nodeId: row.node_id, leasedAt: row.leased_at! })
  }
  return { ...toSummary(row), attempts }
}

/** Of the last attempt that brought any. */
export async function listArtifacts(db: Sql, sessionId: string): Promise<ArtifactReference[]> {
  const rows = await selectArtifacts(db, sessionId).orderBy('path').execute()
  return rows.map(toArtifact)
}

export async function findArtifact(db: Sql, sessionId: string, path: string): Promise<ArtifactReference | undefined> {
  const row = await selectArtifacts(db, sessionId).where('path', '=', path).executeTakeFirst()
  return row && toArtifact(row)
}

/** How many sessions wait, for a node or to be queued again, and how many are being worked on. */
export async function countOpen(db: Sql): Promise<{ queued: number; leased: number }> {
  const { rows } = await sql<{ queued: number; leased: number }>`
    select (select count(*) from sessions where state = 'queued')
      + (select count(*) from sessions where state = 'resting') as queued,
      (select count(*) from sessions where state = 'leased') as leased
  `.execute(db)
  return rows[0] ?? { queued: 0, leased: 0 }
}

function selectSessions(db: Sql) {
  return db
    .selectFrom('sessions')
    .leftJoin('results', (join) =>
      join.onRef('results.session_id', '=', 'sessions.id').onRef('results.attempt', '=', 'sessions.attempt'),
    )
    .selectAll('sessions')
    .select(['path', 'digest', 'bytes'])
}

type SummaryRow = Awaited<ReturnType<ReturnType<typeof selectSessions>['execute']>>[number]

function toSummary(row: SummaryRow): SessionSummary {
  return {
    sessionId: row.id,
    taskId: row.task_id,
    sample: row.sample,
    attempt: row.attempt,
    state: row.state,
    status: row.status as SessionStatus,
    nodeId: row.node_id,
    ...(row.reward !== null && { reward: row.reward }),
    ...(row.failure !== null && { failure: JSON.parse(row.failure) as Failure }),
    ...(row.timing !== null && { timing: JSON.parse(row.timing) as SessionTiming }),
    ...(row.calls !== null && { progress: { calls: row.calls, tokens: row.tokens ?? 0 } }),
    ...(row.path && { result: { path: row.path, digest: row.digest!, bytes: row.bytes! } }),
  }
}

function selectArtifacts(db: Sql, sessionId: string) {
  return db
    .selectFrom('artifacts')
    .selectAll()
    .where('session_id', '=', sessionId)
    .where('attempt', '=', (all) =>
      all
        .selectFrom('artifacts')
        .select(({ fn }) => fn.max('attempt').as('last'))
        .where('session_id', '=', sessionId),
    )
}

function toArtifact(row: Selectable<Tables['artifacts']>): ArtifactReference {
  const { path, stored_path: storedPath, bytes, digest, is_cut: isCut } = row
  return { path, storedPath, bytes, digest, isCut }
}
