import { sql } from 'kysely'
import type { Sql } from '../../database.ts'

/** Whether some registered node can run a task. */
export interface NodeFit {
  /** Nodes are registered, and none has all required labels. */
  isUnrunnable: boolean
  /** Reason why the task does not start now; absent if some node can run it. */
  why?: string
}

interface FitRow {
  hasNodes: boolean
  canRun: boolean
}

/** Unreachable and draining nodes count: they may come back. A task without required labels runs on any node. */
export async function findFit(db: Sql, requires: readonly string[]): Promise<NodeFit> {
  if (requires.length === 0) return { isUnrunnable: false }
  const { rows } = await sql<FitRow>`
    select exists(select 1 from nodes) as "hasNodes",
      exists(select 1 from nodes where labels::jsonb @> ${JSON.stringify(requires)}::jsonb) as "canRun"
  `.execute(db)
  return toFit(requires, rows[0]!)
}

/** Reason why queued sessions of a task do not start; undefined if some node can run them. */
export async function findUnrunnable(db: Sql, taskId: string): Promise<string | undefined> {
  const { rows } = await sql<FitRow & { requires: string[] }>`
    select lanes.requires, exists(select 1 from nodes) as "hasNodes",
      exists(select 1 from nodes where labels::jsonb @> lanes.requires) as "canRun"
    from lanes where id = (select lane_id from sessions where task_id = ${taskId} and state = 'queued' limit 1)
  `.execute(db)
  const [lane] = rows
  return lane && toFit(lane.requires, lane).why
}

function toFit(requires: readonly string[], { hasNodes, canRun }: FitRow): NodeFit {
  if (!hasNodes) return { isUnrunnable: false, why: 'No node is registered yet.' }
  if (canRun) return { isUnrunnable: false }
  return { isUnrunnable: true, why: `No registered node has all of ${requires.map(nameOf).join(', ')}.` }
}

const SANDBOX = 'runtime:'

function nameOf(label: string): string {
  return label.startsWith(SANDBOX) ? `sandboxes of kind ${label.slice(SANDBOX.length)}` : `the label ${label}`
}
