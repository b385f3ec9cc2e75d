import type { Logger } from 'pino'
import type { Answered } from '../../api/mount.ts'
import type { Route } from '../../api/route.ts'
import { RolloutError } from '../../model/failure.ts'
import type { Caller } from './access.ts'

/** While the database or the disk is away, every request says so; one in a while is enough to know. */
const SILENCE_MS = 10_000

/** One line for each request: who asked for what, what became of it, how long it took to begin the answer. */
export function createRequestLog({ logger, monotonic }: { logger: Logger; monotonic: () => number }) {
  let warnedAt = -Infinity
  return (request: Request, route: Route) => {
    const startedAt = monotonic()
    return ({ status, caller, error }: Answered<Caller>): void => {
      const now = monotonic()
      if (error instanceof RolloutError && error.boundary === 'store' && now - warnedAt > SILENCE_MS) {
        warnedAt = now
        logger.warn({ err: error, route: route.path }, 'what the server stores things in does not work')
      }
      const { pathname: path } = new URL(request.url)
      const code = error instanceof RolloutError ? error.code : undefined
      const ms = Math.round((now - startedAt) * 10) / 10
      logger.debug({ method: request.method, path, status, caller: caller?.name, code, ms }, 'answered')
    }
  }
}
