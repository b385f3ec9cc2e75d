import type { Logger } from 'pino'
import { errnoOf } from '../lib/fs/errno.ts'
import { endFaultScope } from '../lib/async/fault-scope.ts'

/**
 * For programs that serve others: an error that nothing caught is logged with its stack and ends the connection or the
 * session that it belongs to. The process goes on. `onBroken`: called when the error says that the process has no memory
 * left.
 */
export function surviveErrors(logger: Logger, { onBroken }: { onBroken?: () => void } = {}): Disposable {
  // Also called for rejections that nothing handled: without a listener of their own, Node raises them as errors.
  const onError = (error: unknown, origin: string): void => {
    const hasEnded = endScope(error, logger)
    logger.error({ err: error, origin, hasEnded }, 'error that nothing caught; the process goes on')
    if (isOutOfMemory(error)) onBroken?.()
  }
  process.on('uncaughtException', onError)
  return { [Symbol.dispose]: () => void process.off('uncaughtException', onError) }
}

function endScope(error: unknown, logger: Logger): boolean {
  try {
    return endFaultScope(error)
  } catch (failure) {
    // An error that is thrown here would end the process.
    logger.error({ err: failure }, 'connection or session could not be ended')
    return false
  }
}

function isOutOfMemory(error: unknown): boolean {
  if (errnoOf(error) === 'ERR_MEMORY_ALLOCATION_FAILED') return true
  return error instanceof RangeError && /allocation failed/i.test(error.message)
}
