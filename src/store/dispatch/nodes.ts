import { sql } from 'kysely'
import type { NodeRegistrationRequest, NodeStageMetrics } from '../../model/node.ts'
import type { Sql } from '../database.ts'

export interface StoredNode {
  registration: NodeRegistrationRequest
  labels: string[]
  metrics: NodeStageMetrics
  draining: boolean
  /** Unix milliseconds. */
  joinedAt: number
  seenAt: number
  /** Sessions in its hands. */
  leased: number
}

const IDLE: NodeStageMetrics = {
  init_queue_depth: 0,
  init_inflight: 0,
  ready_depth: 0,
  run_inflight: 0,
  postrun_queue_depth: 0,
  postrun_inflight: 0,
}

/** A node that joins again is not draining any more. */
export async function putNode(
  db: Sql,
  registration: NodeRegistrationRequest,
  labels: readonly string[],
  now: number,
): Promise<void> {
  const row = {
    registration: JSON.stringify(registration),
    labels: JSON.stringify(labels),
    metrics: JSON.stringify(IDLE),
    draining: false,
    joined_at: now,
    seen_at: now,
  }
  await db
    .insertInto('nodes')
    .values({ id: registration.node_id, ...row })
    .onConflict((conflict) => conflict.column('id').doUpdateSet(row))
    .execute()
}

/** False: there is no such node, and it should join. */
export async function touchNode(db: Sql, nodeId: string, metrics: NodeStageMetrics, now: number): Promise<boolean> {
  const touched = await db
    .updateTable('nodes')
    .set({ metrics: JSON.stringify(metrics), seen_at: now })
    .where('id', '=', nodeId)
    .executeTakeFirst()
  return touched.numUpdatedRows > 0n
}

/** It is given nothing new. False: there is no such node. */
export async function drainNode(db: Sql, nodeId: string): Promise<boolean> {
  const drained = await db.updateTable('nodes').set({ draining: true }).where('id', '=', nodeId).executeTakeFirst()
  return drained.numUpdatedRows > 0n
}

/** Only one that holds nothing; whether it is gone. */
export async function removeIdleNode(db: Sql, nodeId: string): Promise<boolean> {
  const removed = await db
    .deleteFrom('nodes')
    .where('id', '=', nodeId)
    .where((where) => {
      const held = where.selectFrom('sessions').select('id').where('node_id', '=', nodeId).where('state', '=', 'leased')
      return where.not(where.exists(held))
    })
    .executeTakeFirst()
  return removed.numDeletedRows > 0n
}

export async function listNodes(db: Sql): Promise<StoredNode[]> {
  const rows = await db
    .selectFrom('nodes')
    .selectAll()
    .select(sql<number>`(select count(*) from sessions where state = 'leased' and node_id = nodes.id)`.as('leased'))
    .orderBy('id')
    .execute()
  return rows.map((row) => ({
    registration: JSON.parse(row.registration) as NodeRegistrationRequest,
    labels: JSON.parse(row.labels) as string[],
    metrics: JSON.parse(row.metrics) as NodeStageMetrics,
    draining: row.draining,
    joinedAt: row.joined_at,
    seenAt: row.seen_at,
    leased: row.leased,
  }))
}
