import type { Logger } from 'pino'
import { errnoOf } from '../lib/fs/errno.ts'
import { endFaultScope } from '../lib/async/fault-scope.ts'

/**
 * Keeps a server process alive: an uncaught error is logged with its stack and ends the connection or the session that it
 * belongs to. `onBroken` is called for a failed memory allocation.
 */
export function surviveErrors(logger: Logger, { onBroken }: { onBroken?: () => void } = {}): Disposable {
  // Also called for unhandled rejections, which Node raises as errors if they have no listener.
  const onError = (error: unknown, origin: string): void => {
    const hasEnded = endScope(error, logger)
    logger.error({ err: error, origin, hasEnded }, 'uncaught error; the process continues')
    if (isOutOfMemory(error)) onBroken?.()
  }
  process.on('uncaughtException', onError)
  return { [Symbol.dispose]: () => void process.off('uncaughtException', onError) }
}

function endScope(error: unknown, logger: Logger): boolean {
  try {
    return endFaultScope(error)
  } catch (failure) {
    // An error thrown here would end the process.
    logger.error({ err: failure }, 'connection or session could not be ended')
    return false
  }
}

function isOutOfMemory(error: unknown): boolean {
  if (errnoOf(error) === 'ERR_MEMORY_ALLOCATION_FAILED') return true
  return error instanceof RangeError && /allocation failed/i.test(error.message)
}
