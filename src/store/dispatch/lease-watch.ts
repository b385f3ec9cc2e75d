import type { Sql } from '../database.ts'
import { loseSession } from './settle.ts'

interface WatchDeps {
  db: Sql
  now: () => number
  monotonic: () => number
  leaseMs: number
}

/** A wait between two looks counts for at most this part of a lease. */
const LONGEST_STEP = 1 / 3

/**
 * Finds leases that nobody renews. There is no time in a lease, only a count of its renewals, and whoever looks for lost
 * ones counts how long it has seen that stand still. So no two clocks need agree, none may jump, and a server that comes
 * back, or that was stopped or cut off from the database for an hour, gives every node the time to renew first: it must
 * have looked at least four times.
 */
export function createLeaseWatch({ db, now, monotonic, leaseMs }: WatchDeps): { sweep(): Promise<number> } {
  let seen = new Map<string, { attempt: number; beat: number; silentMs: number }>()
  let lookedAt = monotonic()
  return {
    async sweep() {
      const leased = await db
        .selectFrom('sessions')
        .select(['id', 'attempt', 'beat'])
        .where('state', '=', 'leased')
        .orderBy('id')
        .execute()
      const at = monotonic()
      const step = Math.min(at - lookedAt, leaseMs * LONGEST_STEP)
      lookedAt = at
      const before = seen
      seen = new Map()
      let lost = 0
      for (const { id, attempt, beat } of leased) {
        const known = before.get(id)
        const isSame = known?.attempt === attempt && known.beat === beat
        const silentMs = isSame ? known.silentMs + step : 0
        if (silentMs < leaseMs) seen.set(id, { attempt, beat, silentMs })
        else if (await loseSession(db, { sessionId: id, attempt, beat }, now())) lost += 1
      }
      return lost
    },
  }
}
