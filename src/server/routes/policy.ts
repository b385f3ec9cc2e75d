import { RolloutError } from '../../model/failure.ts'
import type { QuotaUse } from '../../store/dispatch/port.ts'
import type { ServerDeps, Some } from '../deps.ts'

/** Policy version and quotas. */
export function policyHandlers({
  dispatch,
  tokenNames,
}: ServerDeps): Some<'getPolicy' | 'putPolicy' | 'listQuotas' | 'putQuota'> {
  return {
    async getPolicy() {
      return { version: await dispatch.policy.get() }
    },
    async putPolicy({ body }) {
      return { version: await dispatch.advancePolicy(body.version), warnings: [NOT_STAMPED] }
    },
    async listQuotas() {
      return { quotas: (await dispatch.quotas.list()).map(toView) }
    },
    async putQuota({ params, body }) {
      const known = (await dispatch.quotas.list()).some(({ owner }) => owner === params.token)
      if (!known && !tokenNames.has(params.token)) {
        throw new RolloutError('request.not-found', `Token ${params.token} does not exist.`)
      }
      const { max_queued_sessions: maxQueued, max_running_sessions: maxRunning } = body
      await dispatch.putQuota(params.token, { maxQueued, maxRunning })
      const use = (await dispatch.quotas.list()).find(({ owner }) => owner === params.token)
      return toView(use ?? { owner: params.token, maxQueued, maxRunning, queued: 0, running: 0 })
    },
  }
}

/** Trainers read a 200 as "tokens are stamped with this version from now on". */
const NOT_STAMPED =
  'No token is stamped with this version: the server only cancels stale tasks by it. The weight version of a token is set ' +
  'by the gateway of each node.'

function toView({ owner, maxQueued, maxRunning, queued, running }: QuotaUse) {
  return {
    token: owner,
    max_queued_sessions: maxQueued,
    max_running_sessions: maxRunning,
    queued_sessions: queued,
    running_sessions: running,
  }
}
