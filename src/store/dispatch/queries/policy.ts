import { sql } from 'kysely'
import type { PolicyState } from '../../../model/policy.ts'
import type { Sql } from '../../database.ts'

/** What the gateway of a node has last confirmed. */
export interface PolicyNode {
  nodeId: string
  /** Undefined: nothing since the node joined. */
  change?: number
  version?: number
  /** Model calls in flight. */
  inFlight: number
  /** Number of leased sessions. */
  leased: number
  /** Changes with each renewal, and when the node joins. */
  seenAt: number
}

export async function getPolicy(db: Sql): Promise<PolicyState> {
  const row = await db.selectFrom('policy').selectAll().executeTakeFirstOrThrow()
  return { change: row.change, version: row.is_set ? row.version : null, paused: row.is_paused, mode: row.mode }
}

/** Without nodes that only registered: they lease no sessions. */
export async function listPolicyNodes(db: Sql): Promise<PolicyNode[]> {
  const rows = await db
    .selectFrom('nodes')
    .select(['id', 'policy_change', 'policy_version', 'in_flight', 'seen_at'])
    .select(sql<number>`(select count(*) from sessions where state = 'leased' and node_id = nodes.id)`.as('leased'))
    .where('boot_id', 'is not', null)
    .orderBy('id')
    .execute()
  return rows.map((row) => ({
    nodeId: row.id,
    change: row.policy_change ?? undefined,
    version: row.policy_version ?? undefined,
    inFlight: row.in_flight,
    leased: row.leased,
    seenAt: row.seen_at,
  }))
}
