import type { Selectable } from 'kysely'
import type { Sql } from '../../database.ts'
import type { Tables } from '../../database/tables.ts'
import { cutPage, toNumber } from './page.ts'

export type CallbackState = 'waiting' | 'delivered' | 'dead'

export interface StoredCallback {
  id: number
  taskId: string
  url: string
  state: CallbackState
  tries: number
  /** Unix milliseconds; absent if the callback will not be tried again. */
  nextAt?: number
  lastError?: string
}

export interface CallbackFilter {
  state?: CallbackState
  taskId?: string
  /** `next` of the previous page. */
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
  return {
    id: row.id,
    taskId: row.task_id,
    url: row.url,
    state: row.state,
    tries: row.tries,
    nextAt: row.state === 'waiting' ? row.next_at : undefined,
    lastError: row.last_error ?? undefined,
  }
}
