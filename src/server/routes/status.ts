import { type OpenApi, toOpenApi } from '../../api/openapi.ts'
import { routes } from '../../api/routes/index.ts'
import type { Clock } from '../../lib/async/clock.ts'
import { RolloutError } from '../../model/failure.ts'
import type { ServerDeps, Some } from '../deps.ts'
import { toNodeInfo } from './views.ts'

const HEALTH_TIMEOUT_MS = 2000

/** Health, API description and totals of the server. */
export function statusHandlers({
  dispatch,
  clock,
  version,
}: ServerDeps): Some<'getHealth' | 'getOpenApi' | 'getStatus'> {
  let openApi: OpenApi | undefined
  return {
    async getHealth() {
      return { status: 'ok', nodes: await withTimeLimit(HEALTH_TIMEOUT_MS, dispatch.nodes.count(), clock) }
    },
    async getOpenApi() {
      openApi ??= toOpenApi(routes, version)
      return { ...openApi }
    },
    async getStatus() {
      const [tasks, open, nodes] = await Promise.all([
        dispatch.tasks.listRunning(),
        dispatch.sessions.countOpen(),
        dispatch.nodes.list(),
      ])
      return {
        tasks: Object.fromEntries(tasks.map((taskId) => [taskId, 'running' as const])),
        pipeline: { pending_sessions: open.queued, running_sessions: open.leased },
        nodes: { nodes: nodes.map((node) => toNodeInfo(node, clock.now())) },
      }
    },
  }
}

async function withTimeLimit<T>(ms: number, work: Promise<T>, clock: Clock): Promise<T> {
  const { promise, reject } = Promise.withResolvers<never>()
  const stop = clock.after(ms, () => {
    const message = `The database did not respond within ${ms / 1000} s.`
    reject(new RolloutError('store.unavailable', message, { status: 503, retryAfterSeconds: 1 }))
  })
  // A rejection after the time limit must not be reported as unhandled.
  work.catch(() => {})
  try {
    return await Promise.race([work, promise])
  } finally {
    stop()
  }
}
