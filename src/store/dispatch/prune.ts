import { sql } from 'kysely'
import type { Sql } from '../database.ts'
import type { PruneLimits } from '../dispatch.ts'

/** So that no transaction is long: a long one holds up whoever reads events. */
const MOST_AT_ONCE = 5000

/**
 * Old rows that nothing is decided by. The age of a row is by the clock on the wall, so one that jumps makes readers lose
 * old events, or a submission that is a day late be taken; nothing else.
 */
export async function prune(db: Sql, limits: PruneLimits, now: number): Promise<number> {
  const { eventsOlderThanMs, tombstonesOlderThanMs, deliveredCallbacksOlderThanMs } = limits
  let pruned = 0
  if (eventsOlderThanMs !== undefined) pruned += await pruneEvents(db, now - eventsOlderThanMs)
  if (tombstonesOlderThanMs !== undefined) {
    const { rows } = await sql`
      delete from tasks where is_tombstone and created_at < ${now - tombstonesOlderThanMs}::float8 returning id
    `.execute(db)
    pruned += rows.length
  }
  if (deliveredCallbacksOlderThanMs !== undefined) {
    const { rows } = await sql`
      delete from callbacks where state = 'delivered' and next_at < ${now - deliveredCallbacksOlderThanMs}::float8
      returning id
    `.execute(db)
    pruned += rows.length
  }
  return pruned
}

/** From the oldest on, as far as they are too old: there is no index by time, and none is needed. */
async function pruneEvents(db: Sql, before: number): Promise<number> {
  for (let pruned = 0; ;) {
    const { rows } = await sql`
      delete from events where (txid, id) in (
        select txid, id from (select txid, id, ts from events order by txid, id limit ${MOST_AT_ONCE}::int) oldest
        where ts < ${before}::float8
      ) returning id
    `.execute(db)
    pruned += rows.length
    if (rows.length < MOST_AT_ONCE) return pruned
  }
}
