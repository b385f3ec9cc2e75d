import { sql } from 'kysely'
import type { Sql } from '../../database.ts'
import type { CallbackEnd, DueCallback } from '../types.ts'

export interface ClaimOptions {
  /** No other server claims the callback for this time; must be longer than a try can take. */
  claimMs: number
  limit: number
}

/** No callback is postponed for longer; a later time means that the clock was set back. */
const MAX_DELAY_MS = 30 * 60_000

/** Claims due callbacks for this server. A callback that is never settled becomes due again: delivery is at least once. */
export async function claimCallbacks(db: Sql, { claimMs, limit }: ClaimOptions, now: number): Promise<DueCallback[]> {
  const { rows } = await sql<{ id: number; task_id: string; url: string; tries: number }>`
    update callbacks set tries = tries + 1, next_at = ${now + claimMs}::float8
    where id in (
      select id from callbacks
      where state = 'waiting' and (next_at <= ${now}::float8 or next_at > ${now + Math.max(MAX_DELAY_MS, claimMs)}::float8)
      order by next_at limit ${limit}::int for no key update skip locked
    )
    returning id, task_id, url, tries
  `.execute(db)
  return rows.map(({ id, task_id, url, tries }) => ({ id, taskId: task_id, url, tries }))
}

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

async function postponeCallback(db: Sql, id: number, at: number): Promise<void> {
  await db
    .updateTable('callbacks')
    .set({ next_at: at, tries: sql<number>`greatest(tries - 1, 0)` })
    .where('id', '=', id)
    .where('state', '=', 'waiting')
    .execute()
}

/** Queues a dead callback again, with no tries counted. False if the callback is not dead. */
export async function requeueCallback(db: Sql, id: number, now: number): Promise<boolean> {
  const requeued = await db
    .updateTable('callbacks')
    .set({ state: 'waiting', tries: 0, next_at: now })
    .where('id', '=', id)
    .where('state', '=', 'dead')
    .executeTakeFirst()
  return requeued.numUpdatedRows > 0n
}
