import { type NodeRegistrationRequest, NodeStageMetrics } from '../../../model/node.ts'
import type { Sql } from '../../database.ts'

const IDLE = NodeStageMetrics.parse({})

export interface NewNode {
  registration: NodeRegistrationRequest
  labels: readonly string[]
  bootId?: string
}

/** A node that registers again no longer drains. */
export async function putNode(db: Sql, node: NewNode, now: number): Promise<void> {
  const row = toRow(node, now)
  await db
    .insertInto('nodes')
    .values({ id: node.registration.node_id, ...row })
    .onConflict((conflict) => conflict.column('id').doUpdateSet(row))
    .execute()
}

/** Writes the node only if its boot id is still `before`, as returned by `findBoot`. Whether it was written. */
export async function replaceNode(
  db: Sql,
  node: NewNode,
  { before, now }: { before: string | null | undefined; now: number },
): Promise<boolean> {
  const row = toRow(node, now)
  const put = await db
    .insertInto('nodes')
    .values({ id: node.registration.node_id, ...row })
    .onConflict((conflict) =>
      conflict
        .column('id')
        .doUpdateSet(row)
        .where('nodes.boot_id', 'is not distinct from', before ?? null),
    )
    .executeTakeFirst()
  return (put.numInsertedOrUpdatedRows ?? 0n) > 0n
}

function toRow(node: NewNode, now: number) {
  return {
    registration: JSON.stringify(node.registration),
    labels: JSON.stringify(node.labels),
    boot_id: node.bootId ?? null,
    metrics: JSON.stringify(IDLE),
    draining: false,
    joined_at: now,
    seen_at: now,
    policy_change: null,
    policy_version: null,
    in_flight: 0,
  }
}

/** Stores a heartbeat. False if the node does not exist. */
export async function touchNode(db: Sql, nodeId: string, metrics: NodeStageMetrics, now: number): Promise<boolean> {
  const touched = await db
    .updateTable('nodes')
    .set({ metrics: JSON.stringify(metrics), seen_at: now })
    .where('id', '=', nodeId)
    .executeTakeFirst()
  return touched.numUpdatedRows > 0n
}

/** A draining node gets no new leases. False if the node does not exist. */
export async function drainNode(db: Sql, nodeId: string): Promise<boolean> {
  const drained = await db.updateTable('nodes').set({ draining: true }).where('id', '=', nodeId).executeTakeFirst()
  return drained.numUpdatedRows > 0n
}

/** Removes a node that holds no lease, and only if its boot id is `bootId` where given. Whether it was removed. */
export async function removeIdleNode(db: Sql, nodeId: string, bootId?: string): Promise<boolean> {
  let query = db
    .deleteFrom('nodes')
    .where('id', '=', nodeId)
    .where((where) => {
      const held = where.selectFrom('sessions').select('id').where('node_id', '=', nodeId).where('state', '=', 'leased')
      return where.not(where.exists(held))
    })
  if (bootId !== undefined) query = query.where('boot_id', '=', bootId)
  const removed = await query.executeTakeFirst()
  return removed.numDeletedRows > 0n
}
