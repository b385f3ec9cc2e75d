import { RolloutError } from '../../model/failure.ts'
import { listQuotas, putQuota, type QuotaUse } from '../../store/dispatch/queries/quotas.ts'
import type { ServerDeps, Some } from '../deps.ts'

/** What is served now, and who may have how much of it. */
export function policyHandlers({
  dispatch,
  database,
  tokenNames,
}: ServerDeps): Some<'getPolicy' | 'putPolicy' | 'listQuotas' | 'putQuota'> {
  const { db } = database
  return {
    async getPolicy() {
      return { version: await dispatch.getPolicy() }
    },
    async putPolicy({ body }) {
      return { version: await dispatch.advancePolicy(body.version), warnings: [NOT_STAMPED] }
    },
    async listQuotas() {
      return { quotas: (await listQuotas(db)).map(toView) }
    },
    async putQuota({ params, body }) {
      const known = (await listQuotas(db)).some(({ owner }) => owner === params.token)
      if (!known && !tokenNames.has(params.token)) {
        throw new RolloutError('request.not-found', `There is no token named ${params.token}.`)
      }
      const { max_queued_sessions: maxQueued, max_running_sessions: maxRunning } = body
      await putQuota(db, params.token, { maxQueued, maxRunning })
      const use = (await listQuotas(db)).find(({ owner }) => owner === params.token)
      return toView(use ?? { owner: params.token, maxQueued, maxRunning, queued: 0, running: 0 })
    },
  }
}

/** Trainers take a 200 for "tokens are stamped with it from now on". */
const NOT_STAMPED =
  'No token is stamped with this version. The server uses it to cancel tasks that are too old. The weight version of ' +
  'tokens is what the gateway of each node was told.'

function toView({ owner, maxQueued, maxRunning, queued, running }: QuotaUse) {
  return {
    token: owner,
    max_queued_sessions: maxQueued,
    max_running_sessions: maxRunning,
    queued_sessions: queued,
    running_sessions: running,
  }
}
