import type { Sql } from '../../database.ts'

export interface NodeWatch {
  sweep(): Promise<void>
  /** Whether the node has sent no renewal for the time of a lease. `seenAt`: its counter, if read after the last sweep. */
  isSilent(nodeId: string, seenAt?: number): boolean
}

/** As in lease-watch.ts: the time between two sweeps counts for at most this part of a lease. */
const MAX_STEP = 1 / 3

/**
 * Measures how long each node has not renewed. `seen_at` serves only as a counter: the time is measured on the monotonic
 * clock of this server, as for leases, so a server that has just started gives every node the time of a lease.
 */
export function createNodeWatch({
  db,
  monotonic,
  leaseMs,
}: {
  db: Sql
  monotonic: () => number
  leaseMs: number
}): NodeWatch {
  let nodes = new Map<string, { seenAt: number; idleMs: number }>()
  let readAt = monotonic()
  return {
    async sweep() {
      const at = monotonic()
      const rows = await db.selectFrom('nodes').select(['id', 'seen_at']).execute()
      const step = Math.min(at - readAt, leaseMs * MAX_STEP)
      readAt = at
      const before = nodes
      nodes = new Map(
        rows.map(({ id, seen_at: seenAt }) => {
          const known = before.get(id)
          return [id, { seenAt, idleMs: known?.seenAt === seenAt ? known.idleMs + step : 0 }]
        }),
      )
    },
    isSilent(nodeId, seenAt) {
      const node = nodes.get(nodeId)
      return node !== undefined && node.idleMs >= leaseMs && (seenAt ?? node.seenAt) === node.seenAt
    },
  }
}
