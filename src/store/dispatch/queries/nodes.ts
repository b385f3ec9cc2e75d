import { sql } from 'kysely'
import { type NodeRegistrationRequest, NodeStageMetrics } from '../../../model/node.ts'
import type { Sql } from '../../database.ts'

export interface StoredNode {
  registration: NodeRegistrationRequest
  labels: string[]
  /** Of the process that joined; absent for one that did not say. */
  bootId?: string
  metrics: NodeStageMetrics
  draining: boolean
  /** Unix milliseconds. */
  joinedAt: number
  seenAt: number
  /** Sessions in its hands. */
  leased: number
}

const IDLE = NodeStageMetrics.parse({})

interface NewNode {
  registration: NodeRegistrationRequest
  labels: readonly string[]
  bootId?: string
}

/** A node that joins again is not draining any more. */
export async function putNode(db: Sql, node: NewNode, now: number): Promise<void> {
  const row = toRow(node, now)
  await db
    .insertInto('nodes')
    .values({ id: node.registration.node_id, ...row })
    .onConflict((conflict) => conflict.column('id').doUpdateSet(row))
    .execute()
}

/** Only where `before` is still the process that has the name, as `findBoot` said; whether it was. */
export async function putNodeOver(
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
  }
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

/** Only one that holds nothing, and only that process if one is named; whether it is gone. */
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

/** Undefined: there is no such node; null: it did not say which process it is. */
export async function findBoot(db: Sql, nodeId: string): Promise<string | null | undefined> {
  const row = await db.selectFrom('nodes').select('boot_id').where('id', '=', nodeId).executeTakeFirst()
  return row?.boot_id
}

export async function findNode(db: Sql, nodeId: string): Promise<StoredNode | undefined> {
  const row = await selectNodes(db).where('id', '=', nodeId).executeTakeFirst()
  return row && toNode(row)
}

export async function listNodes(db: Sql): Promise<StoredNode[]> {
  return (await selectNodes(db).orderBy('id').execute()).map(toNode)
}

function selectNodes(db: Sql) {
  return db
    .selectFrom('nodes')
    .selectAll()
    .select(sql<number>`(select count(*) from sessions where state = 'leased' and node_id = nodes.id)`.as('leased'))
}

type NodeRow = Awaited<ReturnType<ReturnType<typeof selectNodes>['execute']>>[number]

function toNode(row: NodeRow): StoredNode {
  return {
    registration: JSON.parse(row.registration) as NodeRegistrationRequest,
    labels: JSON.parse(row.labels) as string[],
    ...(row.boot_id !== null && { bootId: row.boot_id }),
    metrics: JSON.parse(row.metrics) as NodeStageMetrics,
    draining: row.draining,
    joinedAt: row.joined_at,
    seenAt: row.seen_at,
    leased: row.leased,
  }
}
