import type { Logger } from 'pino'
import type { Answered } from '../../api/mount.ts'
import type { Route } from '../../api/route.ts'
import { RolloutError } from '../../model/failure.ts'
import type { Caller } from './access.ts'

/** While storage is unavailable every request fails; one warning in this time is enough. */
const WARN_INTERVAL_MS = 10_000

/** Logs each request: caller, path, status, and milliseconds until the response began. */
export function createRequestLog({ logger, monotonic }: { logger: Logger; monotonic: () => number }) {
  let warnedAt = -Infinity
  return (request: Request, route: Route) => {
    const startedAt = monotonic()
    return ({ status, caller, error }: Answered<Caller>): void => {
      const now = monotonic()
      if (error instanceof RolloutError && error.boundary === 'store' && now - warnedAt > WARN_INTERVAL_MS) {
        warnedAt = now
        logger.warn({ err: error, route: route.path }, 'storage unavailable (database or result files)')
      }
      const { pathname: path } = new URL(request.url)
      const code = error instanceof RolloutError ? error.code : undefined
      const ms = Math.round((now - startedAt) * 10) / 10
      logger.debug({ method: request.method, path, status, caller: caller?.name, code, ms }, 'request')
    }
  }
}
