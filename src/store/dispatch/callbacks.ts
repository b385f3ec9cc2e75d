import { sql } from 'kysely'
import type { Sql } from '../database.ts'

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

/** Those whose time has come, each for one server. One that is never settled comes again: at least once, not at most. */
export async function takeCallbacks(db: Sql, { claimMs, limit }: CallbackPolicy, now: number): Promise<DueCallback[]> {
  const { rows } = await sql<{ id: number; task_id: string; url: string; tries: number }>`
    update callbacks set tries = tries + 1, next_at = ${now + claimMs}::float8
    where id in (
      select id from callbacks where state = 'waiting' and next_at <= ${now}::float8
      order by next_at limit ${limit}::int for no key update skip locked
    )
    returning id, task_id, url, tries
  `.execute(db)
  return rows.map(({ id, task_id, url, tries }) => ({ id, taskId: task_id, url, tries }))
}

export type CallbackEnd =
  | { kind: 'delivered' }
  | { kind: 'again'; at: number; error: string }
  /** Given up, and kept for a person to see. */
  | { kind: 'dead'; error: string }

export async function settleCallback(db: Sql, id: number, end: CallbackEnd): Promise<void> {
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
