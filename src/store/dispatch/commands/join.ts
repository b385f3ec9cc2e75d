import type { Sql } from '../../database.ts'
import type { Settle } from '../internal/settle-queue.ts'
import { findBoot } from '../queries/nodes.ts'
import type { JoinRequest, JoinResponse } from '../types.ts'
import { loseNode } from './lose-node.ts'
import { removeIdleNode, replaceNode } from './nodes.ts'
import { releaseRest, type Released } from './release.ts'
import { renew } from './renew.ts'

/**
 * Ends the attempts of the previous process before it writes the new boot id: after a crash in between, the node joins again
 * with the same outcome. Once the new boot id is written, requests of the previous process are rejected.
 */
export async function joinNode(db: Sql, settle: Settle, request: JoinRequest, now: number): Promise<JoinResponse> {
  const { registration, labels, bootId, replaces, holding } = request
  const nodeId = registration.node_id
  const before = await findBoot(db, nodeId)
  const isSame = before === bootId
  if (typeof before === 'string' && !isSame && before !== replaces) return { kind: 'taken', bootId: before }
  const lost = isSame ? 0 : await loseNode(db, settle, nodeId, holding)
  const isPut = await replaceNode(db, { registration, labels, bootId }, { before, now })
  // Another process joined in the meantime.
  if (!isPut) return joinNode(db, settle, request, now)
  const { outcomes } = await renew(db, nodeId, holding, { bootId }, now)
  return { kind: 'joined', outcomes, lost }
}

/** Undefined if another process has replaced this one. A node that does not exist has already left. */
export async function leaveNode(
  db: Sql,
  nodeId: string,
  bootId: string | undefined,
  now: number,
): Promise<Released[] | undefined> {
  const current = await findBoot(db, nodeId)
  if (bootId !== undefined && current !== undefined && current !== bootId) return undefined
  const released = await releaseRest(db, nodeId, { bootId }, now)
  await removeIdleNode(db, nodeId, bootId)
  return released
}
