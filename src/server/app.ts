import type { Hono } from 'hono'
import { type Handlers, mountRoutes } from '../api/mount.ts'
import type { Route } from '../api/route.ts'
import { type Routes, routes } from '../api/routes/index.ts'
import { RolloutError } from '../model/failure.ts'
import { isAway, isFull } from '../store/database.ts'
import type { Access, Caller } from './listen/access.ts'
import { callbackHandlers } from './routes/callback-list.ts'
import { completionHandlers } from './routes/complete.ts'
import type { ServerDeps } from './deps.ts'
import { eventHandlers } from './routes/events.ts'
import { leaseHandlers } from './routes/leases.ts'
import { nodeHandlers } from './routes/nodes.ts'
import { policyHandlers } from './routes/policy.ts'
import { createRequestLog } from './listen/request-log.ts'
import { sessionHandlers } from './routes/sessions.ts'
import { statusHandlers } from './routes/status.ts'
import { taskResultHandlers } from './routes/task-results.ts'
import { taskHandlers } from './routes/tasks.ts'
import { uploadHandlers } from './routes/uploads.ts'

export interface AppOptions {
  access: Access
  /** For tests: holds every answer against its schema. */
  checkAnswers?: boolean
}

/** The whole API. */
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
    ...callbackHandlers(deps),
    ...statusHandlers(deps),
  }
  return mountRoutes({
    table: routes,
    handlers: mapValues(handlers, inWords),
    authorize: (request, route) => access.authorize(request, route),
    authorizeNode: (caller, route, nodeId) => access.authorizeNode(caller, route, nodeId),
    checkAnswers,
    onBug(error, route) {
      // A stream that had begun was cut; whoever reads it asks again.
      if (isAway(error)) logger.warn({ err: error, route: nameOf(route) }, 'the database went away during an answer')
      else logger.error({ err: error, route: nameOf(route) }, 'a request failed on a defect')
    },
    onRequest: createRequestLog(deps),
  })
}

function nameOf(route: Route | undefined): string | undefined {
  return route && `${route.method.toUpperCase()} ${route.path}`
}

type AnyHandler = (call: never) => Promise<unknown>

function inWords<H extends AnyHandler>(handler: H): H {
  return (async (call: never) => {
    try {
      return await handler(call)
    } catch (error) {
      throw toShown(error)
    }
  }) as H
}

/** What database and disk say of themselves is for the log; a caller is told whether it may help to ask again. */
function toShown(cause: unknown): unknown {
  if (!isAway(cause)) {
    if (!(cause instanceof RolloutError) || cause.boundary !== 'store') return cause
    return new RolloutError(cause.code, 'What is stored of this cannot be read; the server’s log says why.', { cause })
  }
  const { what, usualSeconds } = describeAway(cause)
  const { retryAfterSeconds = usualSeconds } = cause instanceof RolloutError ? cause.failure : {}
  return new RolloutError('store.unavailable', `${what}; ask again in a moment.`, {
    status: 503,
    retryAfterSeconds,
    cause,
  })
}

function describeAway(cause: unknown): { what: string; usualSeconds: number } {
  if (cause instanceof RolloutError) return { what: 'The server cannot store files just now', usualSeconds: 1 }
  if (isFull(cause)) return { what: 'The disk of the server’s database is full', usualSeconds: 30 }
  return { what: 'The database does not answer', usualSeconds: 1 }
}

/** Each entry keeps its own type; that a loop made them is what the compiler cannot follow. */
function mapValues<T extends object>(values: T, map: <H extends AnyHandler>(handler: H) => H): T {
  return Object.fromEntries(Object.entries(values).map(([name, value]) => [name, map(value as AnyHandler)])) as T
}
