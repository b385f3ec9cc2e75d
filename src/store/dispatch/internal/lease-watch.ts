import { sql } from 'kysely'
import type { Sql } from '../../database.ts'
import { loseSessions } from './lose-sessions.ts'
import type { Settle } from './settle-queue.ts'
import { WORK_CHANNEL } from './work-channel.ts'

export interface LeaseWatch {
  /** Returns the number of lost leases. */
  sweep(): Promise<number>
}

interface WatchDeps {
  db: Sql
  settle: Settle
  monotonic: () => number
  leaseMs: number
  /** Delay before the retry after the first failure. */
  restMs: number
}

/** The time between two sweeps counts for at most this part of a lease. */
const MAX_STEP = 1 / 3
/** With thousands of leases a sweep is expensive, so sweeps that come sooner are skipped. */
const MIN_STEP = 1 / 12
/** Growth of the retry delay with each failure, up to the lease time. */
const REST_FACTOR = 4

interface Watched {
  id: string
  task_id: string
  attempt: number
  failures: number
  beat: number
}

/**
 * Finds leases that are not renewed, and sessions whose retry delay is over. The rows hold no time, only counters of renewals
 * and attempts; each server measures on its monotonic clock how long it has seen a counter unchanged. So clocks of servers
 * need not agree and may jump, and a server that was stopped or disconnected for an hour gives every node time to renew: a
 * lease expires only after at least four sweeps.
 *
 * The retry delay (state `resting`) keeps an engine restart or a broken node from using up all attempts of a session within
 * a second. A session whose node was lost has no delay: the lease time has already passed.
 */
export function createLeaseWatch({ db, settle, monotonic, leaseMs, restMs }: WatchDeps): LeaseWatch {
  const leased = createIdleTimer()
  const resting = createIdleTimer()
  let leasesReadAt = monotonic()
  let restingReadAt = monotonic()
  return {
    async sweep() {
      const at = monotonic()
      const { rows } = await sql<Watched>`
        select id, task_id, attempt, failures, 0 as beat from sessions where state = 'resting' order by id
      `.execute(db)
      const rested = resting(rows, at - restingReadAt, ({ failures }) =>
        Math.min(leaseMs, restMs * REST_FACTOR ** (failures - 1)),
      )
      restingReadAt = at
      await requeue(db, rested)
      if (at - leasesReadAt < leaseMs * MIN_STEP) return 0
      const { rows: held } = await sql<Watched>`
        select id, task_id, attempt, failures, beat from sessions where state = 'leased' order by id
      `.execute(db)
      const lost = leased(held, Math.min(at - leasesReadAt, leaseMs * MAX_STEP), () => leaseMs)
      leasesReadAt = at
      return loseSessions(
        settle,
        lost.map(({ id, task_id, attempt, beat }) => ({ sessionId: id, taskId: task_id, attempt, beat })),
      )
    },
  }
}

/** Measures how long each row has not changed. Returns the rows that reached their limit, and forgets them. */
function createIdleTimer(): (rows: readonly Watched[], step: number, limit: (row: Watched) => number) => Watched[] {
  let seen = new Map<string, { row: Watched; idleMs: number }>()
  return (rows, step, limit) => {
    const before = seen
    seen = new Map()
    return rows.filter((row) => {
      const known = before.get(row.id)
      const idleMs = known !== undefined && isSame(known.row, row) ? known.idleMs + step : 0
      if (idleMs >= limit(row)) return true
      seen.set(row.id, { row, idleMs })
      return false
    })
  }
}

function isSame(a: Watched, b: Watched): boolean {
  return a.attempt === b.attempt && a.beat === b.beat
}

/** One statement that skips locked rows. */
async function requeue(db: Sql, rested: readonly Watched[]): Promise<void> {
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
