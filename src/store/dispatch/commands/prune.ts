import { type RawBuilder, sql } from 'kysely'
import type { Sql } from '../../database.ts'
import type { PruneLimits } from '../types.ts'

/** Keeps transactions short: readers of events wait for the oldest running transaction. */
const MAX_BATCH = 5000

/**
 * Deletes old rows that no decision depends on. Ages are wall-clock times: a clock that jumps can only remove events too
 * early or let a very late submission create its task again. Locked rows are skipped, so that two servers that prune at the
 * same time do not wait for each other. Returns the number of deleted rows.
 */
export async function prune(db: Sql, limits: PruneLimits, now: number): Promise<number> {
  const { eventsOlderThanMs, tombstonesOlderThanMs, deletedOlderThanMs, deliveredCallbacksOlderThanMs } = limits
  let pruned = 0
  if (eventsOlderThanMs !== undefined) pruned += await pruneEvents(db, now - eventsOlderThanMs)
  if (tombstonesOlderThanMs !== undefined) {
    const before = now - tombstonesOlderThanMs
    pruned += await pruneTasks(db, sql`deleted_at is null and created_at < ${before}::float8`)
  }
  if (deletedOlderThanMs !== undefined) {
    // `need = 0`: all of its sessions are deleted; they refer to the task.
    pruned += await pruneTasks(db, sql`need = 0 and deleted_at < ${now - deletedOlderThanMs}::float8`)
  }
  if (deliveredCallbacksOlderThanMs !== undefined) {
    pruned += await inBatches(async () => {
      const { rows } = await sql`
        delete from callbacks where id = any(array(
          select id from callbacks
          where state = 'delivered' and next_at < ${now - deliveredCallbacksOlderThanMs}::float8
          limit ${MAX_BATCH}::int for update skip locked
        )) returning id
      `.execute(db)
      return rows.length
    })
  }
  return pruned
}

function pruneTasks(db: Sql, which: RawBuilder<unknown>): Promise<number> {
  return inBatches(async () => {
    const { rows } = await sql`
      delete from tasks where id = any(array(
        select id from tasks where is_tombstone and ${which} limit ${MAX_BATCH}::int for update skip locked
      )) returning id
    `.execute(db)
    return rows.length
  })
}

/** Starts at the oldest events and stops at the first that is recent enough, so no index by time is needed. */
function pruneEvents(db: Sql, before: number): Promise<number> {
  return inBatches(async () => {
    const { rows } = await sql`
      delete from events where (txid, id) in (
        select txid, id from (select txid, id, ts from events order by txid, id limit ${MAX_BATCH}::int) oldest
        where ts < ${before}::float8
      ) returning id
    `.execute(db)
    return rows.length
  })
}

/** Repeats until a batch is not full. Returns the total. */
async function inBatches(pruneSome: () => Promise<number>): Promise<number> {
  for (let pruned = 0; ;) {
    const some = await pruneSome()
    pruned += some
    if (some < MAX_BATCH) return pruned
  }
}
