import { RolloutError } from '../../model/failure.ts'
import {
  findCallback,
  listCallbacks,
  reviveCallback,
  type StoredCallback,
} from '../../store/dispatch/commands/callbacks.ts'
import type { ServerDeps, Some } from '../deps.ts'

export function callbackHandlers({
  database,
  clock,
  wakeCallbacks,
}: ServerDeps): Some<'listCallbacks' | 'resendCallback'> {
  const { db } = database
  return {
    async listCallbacks({ query: { state, task_id, limit, cursor } }) {
      const { callbacks, next } = await listCallbacks(db, {
        state,
        limit,
        taskId: task_id,
        cursor,
      })
      return { callbacks: callbacks.map(toView), next_cursor: next }
    },
    async resendCallback({ params }) {
      if (await reviveCallback(db, params.callback_id, clock.now())) wakeCallbacks()
      const callback = await findCallback(db, params.callback_id)
      if (callback !== undefined) return toView(callback)
      throw new RolloutError('request.not-found', `There is no callback ${params.callback_id}.`)
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
