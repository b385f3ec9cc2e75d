import { type Body, MIB } from '../../api/route.ts'
import type { Routes } from '../../api/routes/index.ts'
import { MAX_INLINE_BYTES } from '../../api/routes/lease-routes.ts'
import { RolloutError } from '../../model/failure.ts'
import type { SessionProgress } from '../../model/session.ts'
import type { Lease, LeaseResponse, RenewalOutcome } from '../../store/dispatch/port.ts'
import type { ServerDeps, Some } from '../deps.ts'
import { assertMember, noNode, replaced } from './request-errors.ts'
import { toNodeInfo } from './views.ts'

type WireProgress = NonNullable<Body<Routes['renewLeases']>['renewals'][number]['progress']>
type LeaseRoutes = 'joinNode' | 'leaseSessions' | 'renewLeases' | 'releaseLeases' | 'leaveNode'

/** Small enough that a lost connection costs little, large enough that most results are one part. */
const PART_BYTES = 8 * MIB

export function leaseHandlers(deps: ServerDeps): Some<LeaseRoutes> {
  const { dispatch, leaseQueue, longPolls, leaseMs } = deps
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
      leaseQueue.dismiss(nodeId)
      const node = await dispatch.nodes.find(nodeId)
      if (node === undefined) throw noNode(nodeId)
      return {
        kind: 'joined',
        node: toNodeInfo(node, deps.clock.now()),
        lease_ms: leaseMs,
        outcomes: joined.outcomes.map(toOutcome),
        max_part_bytes: PART_BYTES,
        max_inline_bytes: MAX_INLINE_BYTES,
        policy: await dispatch.policy.get(),
      }
    },
    async leaseSessions({ params, body, signal }) {
      const { free_slots: freeSlots, ahead, labels, affinity, holding, wait, boot_id: bootId } = body
      const request = { freeSlots, ahead, affinity, labels, holding: holding?.map(toLease), bootId }
      const response = await longPolls.run(signal, (end) => leaseQueue.lease(params.node_id, request, wait * 1000, end))
      await releaseUndelivered(params.node_id, response, signal, deps)
      assertMember(params.node_id, response.node)
      return {
        orders: response.orders.map(({ order, leaseMs: ms }) => ({ order, lease_ms: ms })),
        draining: response.node === 'draining',
      }
    },
    async renewLeases({ params, body: { renewals, metrics, boot_id: bootId } }) {
      const parsed = renewals.map(({ session_id: sessionId, progress, ...rest }) => {
        return { sessionId, ...rest, ...(progress && { progress: toProgress(progress) }) }
      })
      const response = await dispatch.renew(params.node_id, parsed, { metrics, bootId })
      assertMember(params.node_id, response.node)
      leaseQueue.markAlive(params.node_id)
      return { outcomes: response.outcomes.map(toOutcome), draining: response.node === 'draining' }
    },
    async releaseLeases({ params, body: { leases, boot_id: bootId } }) {
      const released = await dispatch.release(params.node_id, leases.map(toLease), bootId)
      return { released: released.map(({ sessionId, attempt }) => ({ session_id: sessionId, attempt })) }
    },
    async leaveNode({ params, query }) {
      const requeued = await dispatch.leave(params.node_id, query.boot_id)
      if (requeued === undefined) throw replaced(params.node_id)
      leaseQueue.dismiss(params.node_id)
      return { node_id: params.node_id, requeued_sessions: requeued }
    },
  }
}

/** The node disconnected while the request was served, so it does not know about its leases. */
async function releaseUndelivered(
  nodeId: string,
  { orders }: LeaseResponse,
  signal: AbortSignal,
  { dispatch }: ServerDeps,
): Promise<void> {
  if (!signal.aborted || orders.length === 0) return
  const leases = orders.map(({ order: { sessionId, attempt } }) => ({ sessionId, attempt }))
  await dispatch.release(nodeId, leases)
  throw new RolloutError('request.client-gone', `Node ${nodeId} disconnected before the response.`)
}

function toProgress({ oldest_version: oldestVersion, ...counts }: WireProgress): SessionProgress {
  return { ...counts, ...(oldestVersion !== undefined && { oldestVersion }) }
}

function toLease({ session_id, attempt }: { session_id: string; attempt: number }): Lease {
  return { sessionId: session_id, attempt }
}

function toOutcome({ sessionId, attempt, kind }: RenewalOutcome) {
  return { session_id: sessionId, attempt, kind }
}
