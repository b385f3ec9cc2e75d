import { type RawBuilder, sql } from 'kysely'
import type { Sql } from '../../database.ts'
import type { PruneLimits } from '../port.ts'

/** So that no transaction is long: a long one holds up whoever reads events. */
const MOST_AT_ONCE = 5000

/**
 * Old rows that nothing is decided by. The age of a row is by the clock on the wall, so one that jumps makes readers lose
 * old events, or a submission that is a day late be taken; nothing else. Rows that somebody has in hand are passed over:
 * who deletes many must not wait for who deletes some of the same.
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
    // Not before all of its sessions are gone: they name it.
    pruned += await pruneTasks(db, sql`need = 0 and deleted_at < ${now - deletedOlderThanMs}::float8`)
  }
  if (deliveredCallbacksOlderThanMs !== undefined) {
    pruned += await untilFewer(async () => {
      const { rows } = await sql`
        delete from callbacks where id = any(array(
          select id from callbacks
          where state = 'delivered' and next_at < ${now - deliveredCallbacksOlderThanMs}::float8
          limit ${MOST_AT_ONCE}::int for update skip locked
        )) returning id
      `.execute(db)
      return rows.length
    })
  }
  return pruned
}

function pruneTasks(db: Sql, which: RawBuilder<unknown>): Promise<number> {
  return untilFewer(async () => {
    const { rows } = await sql`
      delete from tasks where id = any(array(
        select id from tasks where is_tombstone and ${which} limit ${MOST_AT_ONCE}::int for update skip locked
      )) returning id
    `.execute(db)
    return rows.length
  })
}

/** From the oldest on, as far as they are too old: there is no index by time, and none is needed. */
function pruneEvents(db: Sql, before: number): Promise<number> {
  return untilFewer(async () => {
    const { rows } = await sql`
      delete from events where (txid, id) in (
        select txid, id from (select txid, id, ts from events order by txid, id limit ${MOST_AT_ONCE}::int) oldest
        where ts < ${before}::float8
      ) returning id
    `.execute(db)
    return rows.length
  })
}

/** Again and again, until there was no full batch any more. How many in all. */
async function untilFewer(pruneSome: () => Promise<number>): Promise<number> {
  for (let pruned = 0; ;) {
    const some = await pruneSome()
    pruned += some
    if (some < MOST_AT_ONCE) return pruned
  }
}
