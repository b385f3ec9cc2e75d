import { sql } from 'kysely'
import type { Sql } from '../../database.ts'

/** Approximate number of leased sessions of each lane. */
export interface RunningCounts {
  /** JSON for `json_to_recordset(…) as r(lane_id int, owner text, n int)`. */
  read(db: Sql): Promise<string>
  /** Counts sessions that this process just leased. */
  add(laneIds: readonly number[]): void
}

interface Count {
  lane_id: number
  owner: string
  n: number
}

/** Counts are read again after this time. */
const FRESH_MS = 1000

/**
 * Fairness between lanes needs only approximate counts, and counting all leased sessions at every lease would get slower
 * with their number. So they are counted once a second, and leases of this process are added in between. Limits on running
 * sessions must be exact, and do not use these counts.
 */
export function createRunningCounts(monotonic: () => number): RunningCounts {
  let counts = new Map<number, Count>()
  let readAt = -Infinity
  return {
    async read(db) {
      if (monotonic() - readAt >= FRESH_MS) {
        readAt = monotonic()
        const { rows } = await sql<Count>`
          select lanes.id as lane_id, lanes.owner, count(sessions.id)::int as n
          from lanes left join sessions on lane_id = lanes.id and state = 'leased' group by lanes.id
        `.execute(db)
        counts = new Map(rows.map((row) => [row.lane_id, row]))
      }
      // With one lane there is nothing to compare.
      return counts.size < 2 ? '[]' : JSON.stringify([...counts.values()].filter(({ n }) => n > 0))
    },
    add(laneIds) {
      for (const laneId of laneIds) {
        const count = counts.get(laneId)
        if (count !== undefined) count.n += 1
      }
    },
  }
}
