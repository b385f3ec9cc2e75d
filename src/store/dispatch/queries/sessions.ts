import { type Selectable, sql } from 'kysely'
import type { Failure, FailureCode } from '../../../model/failure.ts'
import type { SessionProgress, SessionStatus, SessionTiming } from '../../../model/session.ts'
import type { Sql } from '../../database.ts'
import type { Tables } from '../../database/tables.ts'
import type { ArtifactReference, ResultReference } from '../types.ts'
import { cutPage, toNumber } from './page.ts'
import { parseStored, toResult } from './row-fields.ts'

export interface SessionSummary {
  sessionId: string
  taskId: string
  sample: number
  /** The running attempt, the last one of an ended session, or the next one of a queued session. */
  attempt: number
  /** `resting`: the last attempt failed because of infrastructure; the session is queued again after a delay. */
  state: 'queued' | 'leased' | 'resting' | 'ended'
  status: SessionStatus
  nodeId: string | null
  reward?: number
  failure?: Failure
  timing?: SessionTiming
  progress?: SessionProgress
  /** Result of the attempt that ended the session; absent if that attempt delivered none. */
  result?: ResultReference
}

export interface AttemptSummary {
  attempt: number
  /** Null: cancelled before a node leased it. */
  nodeId: string | null
  /** Absent while the attempt runs. */
  ending?: 'accepted' | 'lost' | 'released' | 'cancelled'
  failure?: Failure
  /** Also present for attempts that failed because of infrastructure. */
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
  /** `next` of the previous page. */
  cursor?: string
  limit: number
}

export interface SessionPage {
  sessions: SessionSummary[]
  /** Absent on the last page. */
  next?: string
}

/** Lists sessions of all tasks, newest first: ids sort by creation time. */
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

/** Lists sessions of one task, in order of sample. */
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

/** Includes all attempts, also the running one. */
export async function findSession(
  db: Sql,
  sessionId: string,
): Promise<(SessionSummary & { attempts: AttemptSummary[] }) | undefined> {
  const row = await selectSessions(db).where('sessions.id', '=', sessionId).executeTakeFirst()
  if (row === undefined) return undefined
  const ended = await db
    .selectFrom('attempts')
    .leftJoin('results', (join) =>
      join.onRef('results.session_id', '=', 'attempts.session_id').onRef('results.attempt', '=', 'attempts.attempt'),
    )
    .selectAll('attempts')
    .select(['path', 'digest', 'bytes'])
    .where('attempts.session_id', '=', sessionId)
    .orderBy('attempts.attempt')
    .execute()
  const attempts = ended.map((each): AttemptSummary => ({
    attempt: each.attempt,
    nodeId: each.node_id,
    ending: each.ending,
    failure: parseStored(each.failure) as Failure | undefined,
    result: toResult(each),
    leasedAt: each.leased_at ?? undefined,
    endedAt: each.ended_at,
  }))
  if (row.state === 'leased') {
    attempts.push({ attempt: row.attempt, nodeId: row.node_id, leasedAt: row.leased_at! })
  }
  return { ...toSummary(row), attempts }
}

/** Lists the artifacts of the last attempt that delivered any. */
export async function listArtifacts(db: Sql, sessionId: string): Promise<ArtifactReference[]> {
  const rows = await selectArtifacts(db, sessionId).orderBy('path').execute()
  return rows.map(toArtifact)
}

export async function findArtifact(db: Sql, sessionId: string, path: string): Promise<ArtifactReference | undefined> {
  const row = await selectArtifacts(db, sessionId).where('path', '=', path).executeTakeFirst()
  return row && toArtifact(row)
}

/** `queued` includes sessions that wait for their retry delay. */
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
    reward: row.reward ?? undefined,
    failure: parseStored(row.failure) as Failure | undefined,
    timing: parseStored(row.timing) as SessionTiming | undefined,
    progress: row.calls === null ? undefined : { calls: row.calls, tokens: row.tokens ?? 0 },
    result: toResult(row),
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
