import { sql } from 'kysely'
import type { Sql } from '../../database.ts'

/** What each lane has under way, as far as this process knows. */
export interface Running {
  /** For `json_to_recordset(…) as r(lane_id int, owner text, n int)`. */
  read(db: Sql): Promise<string>
  /** So much was just given out. */
  add(laneIds: readonly number[]): void
}

interface Count {
  lane_id: number
  owner: string
  n: number
}

/** Counts are read again after so long. */
const FRESH_MS = 1000

/**
 * Nodes are shared out fairly, not exactly: counting all that runs at every lease would make it slower the more there is.
 * So it is counted once a second, and in between what this process gives out is added. A limit on what runs is another
 * matter, and is counted every time.
 */
export function createRunning(monotonic: () => number): Running {
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
      // One lane leaves no choice.
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
