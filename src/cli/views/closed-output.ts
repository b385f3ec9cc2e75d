import { errnoOf } from '../../lib/fs/errno.ts'

/**
 * A reader that closes the pipe early, such as `head`, is no error. Output to it is dropped; a command that only prints ends at
 * once. A command that handles SIGTERM has something to stop and goes on without output.
 */
export function allowClosedOutput(): void {
  process.stderr.on('error', ignoreClosed)
  process.stdout.on('error', (error) => {
    ignoreClosed(error)
    if (process.listenerCount('SIGTERM') === 0) exitDone()
  })
}

/** For a command that handles SIGTERM, but does nothing except print: it ends like one that does not. */
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
