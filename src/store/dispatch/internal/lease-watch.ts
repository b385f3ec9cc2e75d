import { sql } from 'kysely'
import type { Sql } from '../../database.ts'
import { loseSessions } from '../commands/lose.ts'
import type { Settle } from './settle-queue.ts'
import { WORK_CHANNEL } from './work-channel.ts'

interface WatchDeps {
  db: Sql
  settle: Settle
  monotonic: () => number
  leaseMs: number
  /** How long one rests after its first failure. */
  restMs: number
}

/** A wait between two looks counts for at most this part of a lease. */
const LONGEST_STEP = 1 / 3
/** With thousands of leases a look is not cheap, and one that comes a little later does no harm. */
const SHORTEST_STEP = 1 / 12
/** Each rest is longer than the one before by this, up to the time of a lease. */
const REST_FACTOR = 4

interface Watched {
  id: string
  task_id: string
  attempt: number
  failures: number
  beat: number
}

/**
 * Finds leases that nobody renews, and sessions that have rested long enough after a failure. There is no time in either,
 * only a count of renewals and attempts, and whoever looks counts how long it has seen that stand still. So no two clocks
 * need agree, none may jump, and a server that comes back, or that was stopped or cut off from the database for an hour,
 * gives every node the time to renew first: it must have looked at least four times.
 *
 * A session rests so that an engine that is being restarted, or a node that is broken, does not use up all its attempts
 * within a second. One whose node fell silent does not: that has taken its time already.
 */
export function createLeaseWatch({ db, settle, monotonic, leaseMs, restMs }: WatchDeps): { sweep(): Promise<number> } {
  const leased = createStillness()
  const resting = createStillness()
  let lookedAt = monotonic()
  let restedAt = monotonic()
  return {
    async sweep() {
      const at = monotonic()
      const { rows } = await sql<Watched>`
        select id, task_id, attempt, failures, 0 as beat from sessions where state = 'resting' order by id
      `.execute(db)
      const rested = resting(rows, at - restedAt, ({ failures }) =>
        Math.min(leaseMs, restMs * REST_FACTOR ** (failures - 1)),
      )
      restedAt = at
      await wake(db, rested)
      if (at - lookedAt < leaseMs * SHORTEST_STEP) return 0
      const { rows: held } = await sql<Watched>`
        select id, task_id, attempt, failures, beat from sessions where state = 'leased' order by id
      `.execute(db)
      const lost = leased(held, Math.min(at - lookedAt, leaseMs * LONGEST_STEP), () => leaseMs)
      lookedAt = at
      return loseSessions(
        settle,
        lost.map(({ id, task_id, attempt, beat }) => ({ sessionId: id, taskId: task_id, attempt, beat })),
      )
    },
  }
}

/** Adds up how long each has stood still, from look to look; those that have done so for their time, and are then forgotten. */
function createStillness(): (rows: readonly Watched[], step: number, limit: (row: Watched) => number) => Watched[] {
  let seen = new Map<string, { row: Watched; stillMs: number }>()
  return (rows, step, limit) => {
    const before = seen
    seen = new Map()
    return rows.filter((row) => {
      const known = before.get(row.id)
      const stillMs = known !== undefined && isSame(known.row, row) ? known.stillMs + step : 0
      if (stillMs >= limit(row)) return true
      seen.set(row.id, { row, stillMs })
      return false
    })
  }
}

function isSame(a: Watched, b: Watched): boolean {
  return a.attempt === b.attempt && a.beat === b.beat
}

/** One statement, which never waits. */
async function wake(db: Sql, rested: readonly Watched[]): Promise<void> {
  if (rested.length === 0) return
  const named = JSON.stringify(rested.map(({ id, attempt }) => ({ id, attempt })))
  await sql`
    with rested as materialized (
      select s.id from json_to_recordset(${named}::json) as r(id text, attempt int) join sessions s on s.id = r.id
      where s.id = any(array(select json_array_elements(${named}::json)->>'id'))
        and s.attempt = r.attempt and s.state = 'resting'
      for no key update of s skip locked
    ), queued as (
      update sessions set state = 'queued' from rested where sessions.id = rested.id
    )
    select pg_notify(${WORK_CHANNEL}, '') from (select 1 from rested limit 1) any_rested
  `.execute(db)
}
