import { RolloutError } from '../../model/failure.ts'
import type { StoredCallback } from '../../store/dispatch/port.ts'
import type { ServerDeps, Some } from '../deps.ts'

export function callbackHandlers({ dispatch, wakeCallbacks }: ServerDeps): Some<'listCallbacks' | 'resendCallback'> {
  return {
    async listCallbacks({ query: { state, task_id, limit, cursor } }) {
      const { callbacks, next } = await dispatch.callbacks.list({ state, limit, taskId: task_id, cursor })
      return { callbacks: callbacks.map(toView), next_cursor: next }
    },
    async resendCallback({ params }) {
      if (await dispatch.requeueCallback(params.callback_id)) wakeCallbacks()
      const callback = await dispatch.callbacks.find(params.callback_id)
      if (callback !== undefined) return toView(callback)
      throw new RolloutError('request.not-found', `Callback ${params.callback_id} does not exist.`)
    },
  }
}

function toView({ id, taskId, url, state, tries, nextAt, lastError }: StoredCallback) {
  return {
    callback_id: id,
    task_id: taskId,
    url,
    state,
    tries,
    next_at: nextAt === undefined ? null : nextAt / 1000,
    last_error: lastError ?? null,
  }
}
