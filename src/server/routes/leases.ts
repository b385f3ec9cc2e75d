import { MOST_INLINE_BYTES } from '../../api/routes/lease-routes.ts'
import { MIB } from '../../api/route.ts'
import { RolloutError } from '../../model/failure.ts'
import type { Lease, LeaseAnswer, NodeStanding, RenewalOutcome } from '../../store/dispatch/port.ts'
import { findNode } from '../../store/dispatch/queries/nodes.ts'
import type { ServerDeps, Some } from '../deps.ts'
import { noNode } from './not-found.ts'
import { toNodeInfo } from './views.ts'

type LeaseRoutes = 'joinNode' | 'leaseSessions' | 'renewLeases' | 'releaseLeases' | 'leaveNode'

/** Small enough that a cut connection costs little, large enough that most results are one part. */
const PART_BYTES = 8 * MIB

export function leaseHandlers(deps: ServerDeps): Some<LeaseRoutes> {
  const { dispatch, desk, waits, leaseMs } = deps
  return {
    async joinNode({ params, body: { labels, version: _, boot_id: bootId, replaces, holding, ...registration } }) {
      const nodeId = params.node_id
      const joined = await dispatch.join({
        registration: { ...registration, node_id: nodeId },
        labels,
        bootId,
        replaces,
        holding: holding.map(toLease),
      })
      if (joined.kind === 'taken') return { kind: 'taken', boot_id: joined.bootId }
      desk.dismiss(nodeId)
      const node = await findNode(deps.database.db, nodeId)
      if (node === undefined) throw noNode(nodeId)
      return {
        kind: 'joined',
        node: toNodeInfo(node, deps.clock.now()),
        lease_ms: leaseMs,
        outcomes: joined.outcomes.map(toOutcome),
        max_part_bytes: PART_BYTES,
        max_inline_bytes: MOST_INLINE_BYTES,
      }
    },
    async leaseSessions({ params, body, signal }) {
      const { free_slots: freeSlots, ahead, labels, affinity, holding, wait, boot_id: bootId } = body
      const room = {
        freeSlots,
        ahead,
        affinity,
        labels,
        holding: holding?.map(toLease),
        bootId,
      }
      const answer = await waits.during(signal, (end) => desk.take(params.node_id, room, wait * 1000, end))
      await giveBackUnheard(params.node_id, answer, signal, deps)
      assertMember(params.node_id, answer.node)
      return {
        orders: answer.orders.map(({ order, leaseMs: ms }) => ({ order, lease_ms: ms })),
        draining: answer.node === 'draining',
      }
    },
    async renewLeases({ params, body: { renewals, metrics, boot_id: bootId } }) {
      const asked = renewals.map(({ session_id, attempt, status, progress }) => ({
        sessionId: session_id,
        attempt,
        status,
        progress,
      }))
      const answer = await dispatch.renew(params.node_id, asked, {
        metrics,
        bootId,
      })
      assertMember(params.node_id, answer.node)
      desk.hear(params.node_id)
      return { outcomes: answer.outcomes.map(toOutcome), draining: answer.node === 'draining' }
    },
    async releaseLeases({ params, body: { leases, boot_id: bootId } }) {
      const released = await dispatch.release(params.node_id, leases.map(toLease), bootId)
      return { released: released.map(({ sessionId, attempt }) => ({ session_id: sessionId, attempt })) }
    },
    async leaveNode({ params, query }) {
      const requeued = await dispatch.leave(params.node_id, query.boot_id)
      if (requeued === undefined) throw replaced(params.node_id)
      desk.dismiss(params.node_id)
      return { node_id: params.node_id, requeued_sessions: requeued }
    },
  }
}

/** The node went away while it was being given work: it will never know of it. */
async function giveBackUnheard(
  nodeId: string,
  { orders }: LeaseAnswer,
  signal: AbortSignal,
  { dispatch }: ServerDeps,
): Promise<void> {
  if (!signal.aborted || orders.length === 0) return
  const leases = orders.map(({ order: { sessionId, attempt } }) => ({ sessionId, attempt }))
  await dispatch.release(nodeId, leases)
  throw new RolloutError('request.client-gone', `Node ${nodeId} did not wait for its work.`)
}

function assertMember(nodeId: string, standing: NodeStanding): void {
  switch (standing) {
    case 'member':
    case 'draining':
      return
    case 'unknown':
      throw noNode(nodeId)
    case 'replaced':
      throw replaced(nodeId)
  }
}

function replaced(nodeId: string): RolloutError {
  const message = `Another process has joined as node ${nodeId}; this one should stop, or use a name of its own.`
  return new RolloutError('request.stale', message)
}

function toLease({ session_id, attempt }: { session_id: string; attempt: number }): Lease {
  return { sessionId: session_id, attempt }
}

function toOutcome({ sessionId, attempt, kind }: RenewalOutcome) {
  return { session_id: sessionId, attempt, kind }
}
