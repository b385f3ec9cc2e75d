import { sql, type Transaction } from 'kysely'
import type { Sql } from '../../database.ts'
import type { Tables } from '../../database/tables.ts'
import type { RetentionPolicy } from '../types.ts'
import { markDeleted } from './delete-task.ts'

/** Keeps transactions short: a retry of one of the tasks waits. */
const MAX_BATCH = 20

/** Key of our advisory lock in this database. */
const SIZE_LOCK = 7_652_701_107

/**
 * Deletes some tasks that exceed the retention policy. Several servers may call this at the same time: each skips tasks that
 * another has locked, and only one at a time deletes because of `maxBytes`, so that they do not all free the same excess.
 */
export function retire(db: Sql, policy: RetentionPolicy, now: number): Promise<string[]> {
  const { olderThanMs, maxBytes, keepAtLeastMs } = policy
  return db.transaction().execute(async (tx) => {
    const clock = await earlierClock(tx, now)
    const old = olderThanMs === undefined ? [] : await lockEnded(tx, clock - olderThanMs)
    const ids = old.map(({ id }) => id)
    if (ids.length === 0 && maxBytes !== undefined) {
      let excess = await countExcess(tx, maxBytes)
      const ended = excess > 0 ? await lockEnded(tx, clock - keepAtLeastMs) : []
      for (const { id, bytes } of ended) {
        if (excess <= 0) break
        ids.push(id)
        excess -= bytes
      }
    }
    if (ids.length > 0) await markDeleted(tx, ids, now)
    return ids
  })
}

/** A deletion is final, so a server whose clock is a month ahead must not decide it alone: the database's clock must agree. */
async function earlierClock(tx: Transaction<Tables>, now: number): Promise<number> {
  const { rows } = await sql<{ now: number }>`
    select least(${now}::float8, extract(epoch from clock_timestamp())::float8 * 1000) as now
  `.execute(tx)
  return rows[0]!.now
}

/** Locks tasks that ended before a time, oldest first, without those that have a pending callback. */
async function lockEnded(tx: Transaction<Tables>, before: number): Promise<{ id: string; bytes: number }[]> {
  const { rows } = await sql<{ id: string; bytes: number }>`
    select id, bytes from tasks
    where ended_at < ${before}::float8
      and not exists (select 1 from callbacks where task_id = tasks.id and state = 'waiting')
    order by ended_at limit ${MAX_BATCH}::int for no key update skip locked
  `.execute(tx)
  return rows
}

/** Bytes above the limit; 0 if another server is handling them. */
async function countExcess(tx: Transaction<Tables>, maxBytes: number): Promise<number> {
  const { rows: locks } = await sql<{ mine: boolean }>`
    select pg_try_advisory_xact_lock(${SIZE_LOCK}::bigint) as mine
  `.execute(tx)
  if (!locks[0]!.mine) return 0
  const { rows } = await sql<{ bytes: number }>`
    select coalesce(sum(bytes), 0)::bigint as bytes from tasks where ended_at is not null
  `.execute(tx)
  return rows[0]!.bytes - maxBytes
}
