import type { Logger } from 'pino'
import type { Clock } from '../../lib/async/clock.ts'

/** What is done again and again beside answering requests. */
export interface Chore {
  name: string
  /** From the end of one time to the beginning of the next. */
  everyMs: number
  /** The signal is aborted when they are to end: one that takes long should stop soon, and go on next time. */
  work: (signal: AbortSignal) => Promise<unknown>
}

/** Does each on its own. One that fails is logged, and done again when its time has come; disposing waits for the last. */
export function startChores(
  chores: readonly Chore[],
  { clock, logger }: { clock: Clock; logger: Logger },
): AsyncDisposable {
  const running = new Set<Promise<void>>()
  const timers = new Map<Chore, () => void>()
  const stop = new AbortController()

  const schedule = (chore: Chore): void => {
    if (stop.signal.aborted) return
    const unset = clock.after(chore.everyMs, () => {
      const run = runOnce(chore, stop.signal, logger).finally(() => {
        running.delete(run)
        schedule(chore)
      })
      running.add(run)
    })
    timers.set(chore, unset)
  }
  for (const chore of chores) schedule(chore)
  return {
    async [Symbol.asyncDispose]() {
      stop.abort()
      for (const unset of timers.values()) unset()
      await Promise.all(running)
    },
  }
}

async function runOnce({ name, work }: Chore, signal: AbortSignal, logger: Logger): Promise<void> {
  try {
    await work(signal)
  } catch (error) {
    logger.warn({ err: error, chore: name }, 'a chore of the server failed and will be tried again')
  }
}
