import { type Selectable, sql } from 'kysely'
import type { Sql } from '../../database.ts'
import type { Tables } from '../../database/tables.ts'
import { cutPage, toNumber } from '../queries/page.ts'

export type CallbackState = 'waiting' | 'delivered' | 'dead'

export interface DueCallback {
  id: number
  taskId: string
  url: string
  /** This one included. */
  tries: number
}

export interface CallbackPolicy {
  /** For so long nobody else takes it; longer than a try may last. */
  claimMs: number
  limit: number
}

/** None is ever put off for longer; one that seems to be was, before the clock was set back. */
const FURTHEST_MS = 30 * 60_000

/** Those whose time has come, each for one server. One that is never settled comes again: at least once, not at most. */
export async function takeCallbacks(db: Sql, { claimMs, limit }: CallbackPolicy, now: number): Promise<DueCallback[]> {
  const { rows } = await sql<{ id: number; task_id: string; url: string; tries: number }>`
    update callbacks set tries = tries + 1, next_at = ${now + claimMs}::float8
    where id in (
      select id from callbacks
      where state = 'waiting' and (next_at <= ${now}::float8 or next_at > ${now + Math.max(FURTHEST_MS, claimMs)}::float8)
      order by next_at limit ${limit}::int for no key update skip locked
    )
    returning id, task_id, url, tries
  `.execute(db)
  return rows.map(({ id, task_id, url, tries }) => ({ id, taskId: task_id, url, tries }))
}

export type CallbackEnd =
  | { kind: 'delivered' }
  | { kind: 'again'; at: number; error: string }
  /** Nothing was sent: it is due then, and this try was none. */
  | { kind: 'postponed'; at: number }
  /** Given up, and kept for a person to see. */
  | { kind: 'dead'; error: string }

export async function settleCallback(db: Sql, id: number, end: CallbackEnd): Promise<void> {
  if (end.kind === 'postponed') return await postponeCallback(db, id, end.at)
  const error = end.kind === 'delivered' ? null : end.error.toWellFormed().replaceAll('\0', '')
  await db
    .updateTable('callbacks')
    .set({
      state: end.kind === 'again' ? 'waiting' : end.kind,
      last_error: error,
      ...(end.kind === 'again' && { next_at: end.at }),
    })
    .where('id', '=', id)
    .where('state', '=', 'waiting')
    .execute()
}

export interface StoredCallback {
  id: number
  taskId: string
  url: string
  state: CallbackState
  tries: number
  /** Unix milliseconds; absent for one that will not be tried again. */
  nextAt?: number
  lastError?: string
}

export interface CallbackFilter {
  state?: CallbackState
  taskId?: string
  /** Where the page before ended. */
  cursor?: string
  limit: number
}

export async function findCallback(db: Sql, id: number): Promise<StoredCallback | undefined> {
  const row = await db.selectFrom('callbacks').selectAll().where('id', '=', id).executeTakeFirst()
  return row && toCallback(row)
}

/** Newest first. `next` is absent on the last page. */
export async function listCallbacks(
  db: Sql,
  { state, taskId, cursor, limit }: CallbackFilter,
): Promise<{ callbacks: StoredCallback[]; next?: string }> {
  let query = db
    .selectFrom('callbacks')
    .selectAll()
    .orderBy('id', 'desc')
    .limit(limit + 1)
  if (state !== undefined) query = query.where('state', '=', state)
  if (taskId !== undefined) query = query.where('task_id', '=', taskId)
  if (cursor !== undefined) query = query.where('id', '<', toNumber(cursor))
  const { page, next } = cutPage(await query.execute(), limit, ({ id }) => String(id))
  return { callbacks: page.map(toCallback), next }
}

function toCallback(row: Selectable<Tables['callbacks']>): StoredCallback {
  const { id, task_id: taskId, url, state, tries } = row
  return {
    id,
    taskId,
    url,
    state,
    tries,
    ...(state === 'waiting' && { nextAt: row.next_at }),
    ...(row.last_error !== null && { lastError: row.last_error }),
  }
}

async function postponeCallback(db: Sql, id: number, at: number): Promise<void> {
  await db
    .updateTable('callbacks')
    .set({ next_at: at, tries: sql<number>`greatest(tries - 1, 0)` })
    .where('id', '=', id)
    .where('state', '=', 'waiting')
    .execute()
}

/** Tries a dead one once more, from the beginning. */
export async function reviveCallback(db: Sql, id: number, now: number): Promise<boolean> {
  const revived = await db
    .updateTable('callbacks')
    .set({ state: 'waiting', tries: 0, next_at: now })
    .where('id', '=', id)
    .where('state', '=', 'dead')
    .executeTakeFirst()
  return revived.numUpdatedRows > 0n
}
