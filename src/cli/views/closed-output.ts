import { errnoOf } from '../../lib/fs/errno.ts'

/**
 * Makes a closed pipe, as with `head`, not an error. Further output is dropped. A command that only prints exits at once; a
 * command that handles SIGTERM has work to finish and continues without output.
 */
export function allowClosedOutput(): void {
  process.stderr.on('error', ignoreClosed)
  process.stdout.on('error', (error) => {
    ignoreClosed(error)
    if (process.listenerCount('SIGTERM') === 0) exitDone()
  })
}

/** Exits when standard output is closed, for a command that handles SIGTERM but only prints. */
export function endWithOutput(): Disposable {
  process.stdout.on('error', exitDone)
  return { [Symbol.dispose]: () => void process.stdout.off('error', exitDone) }
}

function exitDone(): never {
  process.exit(process.exitCode ?? 0)
}

function ignoreClosed(error: unknown): void {
  if (errnoOf(error) !== 'EPIPE') throw error
}
