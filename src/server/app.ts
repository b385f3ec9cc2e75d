import type { Hono } from 'hono'
import { type Handlers, mountRoutes } from '../api/mount.ts'
import type { Route } from '../api/route.ts'
import { type Routes, routes } from '../api/routes/index.ts'
import { RolloutError } from '../model/failure.ts'
import { isOutOfSpace, isUnavailable } from '../store/store-errors.ts'
import type { ServerDeps } from './deps.ts'
import type { Access, Caller } from './listen/access.ts'
import { createRequestLog } from './listen/request-log.ts'
import { callbackHandlers } from './routes/callbacks.ts'
import { completionHandlers } from './routes/complete.ts'
import { eventHandlers } from './routes/events.ts'
import { leaseHandlers } from './routes/leases.ts'
import { nodeHandlers } from './routes/nodes.ts'
import { policyHandlers } from './routes/policy.ts'
import { quotaHandlers } from './routes/quotas.ts'
import { sessionHandlers } from './routes/sessions.ts'
import { statusHandlers } from './routes/status.ts'
import { taskResultHandlers } from './routes/task-results.ts'
import { taskHandlers } from './routes/tasks.ts'
import { uploadHandlers } from './routes/uploads.ts'

export interface AppOptions {
  access: Access
  /** For tests: validates every response against its schema. */
  checkAnswers?: boolean
}

/** Mounts the handlers of all API routes. */
export function createApp(deps: ServerDeps, { access, checkAnswers }: AppOptions): Hono {
  const { logger } = deps
  const handlers: Handlers<Routes, Caller> = {
    ...taskHandlers(deps),
    ...taskResultHandlers(deps),
    ...sessionHandlers(deps),
    ...nodeHandlers(deps),
    ...leaseHandlers(deps),
    ...uploadHandlers(deps),
    ...completionHandlers(deps),
    ...eventHandlers(deps),
    ...policyHandlers(deps),
    ...quotaHandlers(deps),
    ...callbackHandlers(deps),
    ...statusHandlers(deps),
  }
  return mountRoutes({
    table: routes,
    handlers: mapValues(handlers, withShownErrors),
    authorize: (request, route) => access.authorize(request, route),
    authorizeNode: (caller, route, nodeId) => access.authorizeNode(caller, route, nodeId),
    checkAnswers,
    onBug(error, route) {
      // A response stream that had begun was cut; its reader sends the request again.
      if (isUnavailable(error))
        logger.warn({ err: error, route: nameOf(route) }, 'database unavailable during a response')
      else logger.error({ err: error, route: nameOf(route) }, 'request failed because of a bug')
    },
    onRequest: createRequestLog(deps),
  })
}

function nameOf(route: Route | undefined): string | undefined {
  return route && `${route.method.toUpperCase()} ${route.path}`
}

type AnyHandler = (call: never) => Promise<unknown>

function withShownErrors<H extends AnyHandler>(handler: H): H {
  return (async (call: never) => {
    try {
      return await handler(call)
    } catch (error) {
      throw toShown(error)
    }
  }) as H
}

/** Errors of the database and the disk go to the log; the client only gets whether to retry. */
function toShown(cause: unknown): unknown {
  if (!isUnavailable(cause)) {
    if (!(cause instanceof RolloutError) || cause.boundary !== 'store') return cause
    return new RolloutError(cause.code, 'The stored data cannot be read; see the log of the server.', { cause })
  }
  const { problem, defaultSeconds } = describeUnavailable(cause)
  const { retryAfterSeconds = defaultSeconds } = cause instanceof RolloutError ? cause.failure : {}
  return new RolloutError('store.unavailable', `${problem}; retry in a moment.`, {
    status: 503,
    retryAfterSeconds,
    cause,
  })
}

function describeUnavailable(cause: unknown): { problem: string; defaultSeconds: number } {
  if (cause instanceof RolloutError)
    return { problem: 'The file store of the server is unavailable', defaultSeconds: 1 }
  if (isOutOfSpace(cause)) return { problem: 'The disk of the server’s database is full', defaultSeconds: 30 }
  return { problem: 'The database is unavailable', defaultSeconds: 1 }
}

/** The cast is safe: each entry keeps its type, which the compiler cannot follow through the loop. */
function mapValues<T extends object>(values: T, map: <H extends AnyHandler>(handler: H) => H): T {
  return Object.fromEntries(Object.entries(values).map(([name, value]) => [name, map(value as AnyHandler)])) as T
}
