import type { Policy, PolicyNode } from '../../api/routes/policy-routes.ts'
import { RolloutError } from '../../model/failure.ts'
import type { PolicyState } from '../../model/policy.ts'
import type { ServerDeps, Some } from '../deps.ts'
import { maySeeNode } from '../listen/access.ts'
import { assertMember } from './request-errors.ts'

type PolicyRoutes = 'getPolicy' | 'putPolicy' | 'pausePolicy' | 'resumePolicy' | 'pollPolicy'

/** A notification may be lost, and a node may leave or lose its lease without one. */
const RECHECK_MS = 1000

/** Weight version and pause of the gateways of all nodes. */
export function policyHandlers(deps: ServerDeps): Some<PolicyRoutes> {
  const { dispatch, policyNotices, longPolls, monotonic } = deps
  return {
    async getPolicy({ caller }) {
      const policy = await readPolicy(deps)
      return { ...policy, nodes: policy.nodes.filter(({ node_id }) => maySeeNode(caller, node_id)) }
    },
    async putPolicy({ body: { version, resume, timeout_seconds: seconds }, signal }) {
      const before = await dispatch.policy.get()
      const { change } = await dispatch.changePolicy({ version, ...(resume && { paused: false }) })
      const policy = await untilConfirmed(change, seconds, signal, deps)
      const isNew = before.version === null || version > before.version
      const calls = policy.nodes.reduce((sum, { in_flight }) => sum + in_flight, 0)
      return isNew && !before.paused && calls > 0 ? { ...policy, warnings: [notPaused(calls)] } : policy
    },
    async pausePolicy({ body: { mode, timeout_seconds: seconds }, signal }) {
      const { change } = await dispatch.changePolicy({ paused: true, mode })
      const policy = await untilConfirmed(change, seconds, signal, deps)
      if (policy.paused) return policy
      throw new RolloutError('request.conflict', 'Another request ended the pause while this request waited.')
    },
    async resumePolicy({ query: { timeout_seconds: seconds }, signal }) {
      const { change } = await dispatch.changePolicy({ paused: false })
      return untilConfirmed(change, seconds, signal, deps)
    },
    async pollPolicy({ params, body, signal }) {
      const { boot_id: bootId, change, version, in_flight: inFlight, wait } = body
      assertMember(params.node_id, await dispatch.confirmPolicy(params.node_id, { bootId, change, version, inFlight }))
      return longPolls.run(signal, async (end) => {
        const until = monotonic() + wait * 1000
        using notices = policyNotices.subscribe('state')
        for (;;) {
          const state = await dispatch.policy.get()
          const left = until - monotonic()
          if (state.change > change || left <= 0 || end.aborted) return state
          await notices.next(Math.min(left, POLL_RECHECK_MS), end)
        }
      })
    },
  }
}

/** Longer than for trainers: every node polls, and a notification is hardly ever lost. */
const POLL_RECHECK_MS = 5000

/** Resolves when every node has confirmed this change or a later one. */
async function untilConfirmed(change: number, seconds: number, signal: AbortSignal, deps: ServerDeps): Promise<Policy> {
  const { longPolls, policyNotices, monotonic } = deps
  return longPolls.run(signal, async (end) => {
    const until = monotonic() + seconds * 1000
    using notices = policyNotices.subscribe('nodes')
    for (;;) {
      const policy = await readPolicy(deps)
      const missing = policy.nodes.filter((node) => !node.lost && !isConfirmed(node, policy, change))
      if (missing.length === 0) return policy
      const left = until - monotonic()
      if (left <= 0) throw unconfirmed(missing, seconds, policy)
      if (end.aborted) throw new RolloutError('server.unreachable', 'The server is stopping; send the request again.')
      await notices.next(Math.min(left, RECHECK_MS), end)
    }
  })
}

async function readPolicy({ dispatch }: ServerDeps): Promise<Policy> {
  // In this order: a node that confirmed a later change than `state` counts as confirmed.
  const state = await dispatch.policy.get()
  const nodes = await dispatch.policy.listNodes()
  return {
    ...state,
    version: state.version ?? 0,
    nodes: nodes.map(({ nodeId, change, version, inFlight, leased, seenAt }) => {
      const node = { node_id: nodeId, change: change ?? null, version: version ?? null, in_flight: inFlight }
      // The leases of a silent node expire with it; until then its results are accepted, so it must confirm.
      const lost = leased === 0 && dispatch.isSilent(nodeId, seenAt)
      return { ...node, confirmed: isConfirmed(node, state, state.change), lost }
    }),
  }
}

function isConfirmed(
  node: Pick<PolicyNode, 'change' | 'in_flight'>,
  { paused, mode }: Pick<PolicyState, 'paused' | 'mode'>,
  change: number,
): boolean {
  if (node.change === null || node.change < change) return false
  return !paused || mode === 'hold' || node.in_flight === 0
}

const MAX_NAMED = 10

function unconfirmed(missing: readonly PolicyNode[], seconds: number, { paused }: Policy): RolloutError {
  const named = missing.slice(0, MAX_NAMED).map(({ node_id, in_flight }) => `${node_id} (${in_flight} calls in flight)`)
  const rest = missing.length > MAX_NAMED ? ` and ${missing.length - MAX_NAMED} more` : ''
  const message =
    `After ${seconds} s these nodes have not confirmed: ${named.join(', ')}${rest}. The change stays` +
    `${paused ? ', and gateways are paused' : ''}; send the request again to wait longer. GET /policy shows all nodes.`
  return new RolloutError('server.unconfirmed', message)
}

function notPaused(calls: number): string {
  return (
    `The gateways were not paused, and ${calls} calls were in flight: their tokens have the older version or a range. ` +
    'Pause before the weights change, so that no call is sent to the old weights with the new version.'
  )
}
