import type { Sql } from '../../database.ts'
import type { JoinAnswer, Joining } from '../port.ts'
import { loseNode } from './lose.ts'
import { findBoot, putNodeOver, removeIdleNode } from '../queries/nodes.ts'
import { releaseRest, type Released } from './release.ts'
import { renew } from './renew.ts'
import type { Settle } from '../internal/settle-queue.ts'

/**
 * What the process before had is lost before the new one is written down: should we be killed in between, the node joins
 * again and finds it so. From then on the old one is refused, should it still be there.
 */
export async function joinNode(db: Sql, settle: Settle, joining: Joining, now: number): Promise<JoinAnswer> {
  const { registration, labels, bootId, replaces, holding } = joining
  const nodeId = registration.node_id
  const before = await findBoot(db, nodeId)
  const isSame = before === bootId
  if (typeof before === 'string' && !isSame && before !== replaces) return { kind: 'taken', bootId: before }
  const lost = isSame ? 0 : await loseNode(db, settle, nodeId, holding)
  const isPut = await putNodeOver(db, { registration, labels, bootId }, { before, now })
  // Somebody was faster.
  if (!isPut) return joinNode(db, settle, joining, now)
  const { outcomes } = await renew(db, nodeId, holding, { bootId }, now)
  return { kind: 'joined', outcomes, lost }
}

/** Undefined when another process has taken its place. A node that is gone already has left. */
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
