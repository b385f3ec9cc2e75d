import { RolloutError } from '../../model/failure.ts'
import type { QuotaUse } from '../../store/dispatch/port.ts'
import type { ServerDeps, Some } from '../deps.ts'

export function quotaHandlers({ dispatch, tokenNames }: ServerDeps): Some<'listQuotas' | 'putQuota'> {
  return {
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

function toView({ owner, maxQueued, maxRunning, queued, running }: QuotaUse) {
  return {
    token: owner,
    max_queued_sessions: maxQueued,
    max_running_sessions: maxRunning,
    queued_sessions: queued,
    running_sessions: running,
  }
}
