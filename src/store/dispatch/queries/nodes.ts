import { sql } from 'kysely'
import type { NodeRegistrationRequest, NodeStageMetrics } from '../../../model/node.ts'
import type { Sql } from '../../database.ts'

export interface StoredNode {
  registration: NodeRegistrationRequest
  labels: string[]
  /** Id of the process that joined; absent if the node only registered. */
  bootId?: string
  metrics: NodeStageMetrics
  draining: boolean
  /** Unix milliseconds. */
  joinedAt: number
  seenAt: number
  /** Number of leased sessions. */
  leased: number
}

/** Undefined: the node does not exist. Null: the node registered without a boot id. */
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

export async function countNodes(db: Sql): Promise<number> {
  const { n } = await db
    .selectFrom('nodes')
    .select((nodes) => nodes.fn.countAll<number>().as('n'))
    .executeTakeFirstOrThrow()
  return n
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
    bootId: row.boot_id ?? undefined,
    metrics: JSON.parse(row.metrics) as NodeStageMetrics,
    draining: row.draining,
    joinedAt: row.joined_at,
    seenAt: row.seen_at,
    leased: row.leased,
  }
}
