import { type OpenApi, toOpenApi } from '../../api/openapi.ts'
import { routes } from '../../api/routes/index.ts'
import type { Clock } from '../../lib/async/clock.ts'
import { RolloutError } from '../../model/failure.ts'
import { listNodes } from '../../store/dispatch/queries/nodes.ts'
import { countOpen } from '../../store/dispatch/queries/sessions.ts'
import { listRunning } from '../../store/dispatch/queries/tasks.ts'
import type { ServerDeps, Some } from '../deps.ts'
import { toNodeInfo } from './views.ts'

const LONGEST_HEALTH_MS = 2000

/** The server at a glance. */
export function statusHandlers({
  database,
  clock,
  version,
}: ServerDeps): Some<'getHealth' | 'getOpenApi' | 'getStatus'> {
  const { db } = database
  let openApi: OpenApi | undefined
  const count = async (): Promise<number> => {
    const { n } = await db
      .selectFrom('nodes')
      .select((nodes) => nodes.fn.countAll<number>().as('n'))
      .executeTakeFirstOrThrow()
    return n
  }
  return {
    async getHealth() {
      return { status: 'ok', nodes: await within(LONGEST_HEALTH_MS, count(), clock) }
    },
    async getOpenApi() {
      openApi ??= toOpenApi(routes, version)
      return { ...openApi }
    },
    async getStatus() {
      const [tasks, open, nodes] = await Promise.all([listRunning(db), countOpen(db), listNodes(db)])
      return {
        tasks: Object.fromEntries(tasks.map((taskId) => [taskId, 'running' as const])),
        pipeline: { pending_sessions: open.queued, running_sessions: open.leased },
        nodes: { nodes: nodes.map((node) => toNodeInfo(node, clock.now())) },
      }
    },
  }
}

async function within<T>(ms: number, work: Promise<T>, clock: Clock): Promise<T> {
  const { promise, reject } = Promise.withResolvers<never>()
  const stop = clock.after(ms, () => {
    const message = `The database did not answer within ${ms / 1000} s.`
    reject(new RolloutError('store.unavailable', message, { status: 503, retryAfterSeconds: 1 }))
  })
  // Whichever is later is of no interest to anybody.
  work.catch(() => {})
  try {
    return await Promise.race([work, promise])
  } finally {
    stop()
  }
}
