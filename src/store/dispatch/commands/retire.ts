import { sql, type Transaction } from 'kysely'
import type { Sql } from '../../database.ts'
import type { Tables } from '../../database/tables.ts'
import type { RetentionPolicy } from '../port.ts'
import { bury } from './delete-task.ts'

/** So that no transaction is long, and none keeps many tasks from those who would make them again. */
const MOST_AT_ONCE = 20

/** Of all locks that programs take in this database by a number they agreed on, ours. */
const SIZE_LOCK = 7_652_701_107

/**
 * Some of the tasks that are to be kept no longer. Several servers may do it at once: each passes over what another has
 * in hand, and of several that find too many bytes one at a time says what goes, so that they do not all make room.
 */
export function retire(db: Sql, policy: RetentionPolicy, now: number): Promise<string[]> {
  const { olderThanMs, maxBytes, keepAtLeastMs } = policy
  return db.transaction().execute(async (tx) => {
    const clock = await earlierClock(tx, now)
    const old = olderThanMs === undefined ? [] : await takeEnded(tx, clock - olderThanMs)
    const ids = old.map(({ id }) => id)
    if (ids.length === 0 && maxBytes !== undefined) {
      let excess = await countExcess(tx, maxBytes)
      const ended = excess > 0 ? await takeEnded(tx, clock - keepAtLeastMs) : []
      for (const { id, bytes } of ended) {
        if (excess <= 0) break
        ids.push(id)
        excess -= bytes
      }
    }
    if (ids.length > 0) await bury(tx, ids, now)
    return ids
  })
}

/**
 * What goes is gone for good, so one machine whose clock is a month ahead must not decide it: where the database has
 * another clock, both have to say so.
 */
async function earlierClock(tx: Transaction<Tables>, now: number): Promise<number> {
  const { rows } = await sql<{ now: number }>`
    select least(${now}::float8, extract(epoch from clock_timestamp())::float8 * 1000) as now
  `.execute(tx)
  return rows[0]!.now
}

/** Locked for us, oldest first, but those that a trainer is still to hear of. */
async function takeEnded(tx: Transaction<Tables>, before: number): Promise<{ id: string; bytes: number }[]> {
  const { rows } = await sql<{ id: string; bytes: number }>`
    select id, bytes from tasks
    where ended_at < ${before}::float8
      and not exists (select 1 from callbacks where task_id = tasks.id and state = 'waiting')
    order by ended_at limit ${MOST_AT_ONCE}::int for no key update skip locked
  `.execute(tx)
  return rows
}

/** How many bytes there are too many; none where another server sees to it just now. */
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
