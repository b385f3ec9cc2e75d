import type { Logger } from 'pino'
import type { Clock } from '../lib/clock.ts'

/** What is done again and again beside answering requests. */
export interface Chore {
  name: string
  /** From the end of one time to the beginning of the next. */
  everyMs: number
  work: () => Promise<unknown>
}

/** Does each on its own. One that fails is logged, and done again when its time has come; disposing waits for the last. */
export function startChores(
  chores: readonly Chore[],
  { clock, logger }: { clock: Clock; logger: Logger },
): AsyncDisposable {
  const running = new Set<Promise<void>>()
  const stops = new Map<Chore, () => void>()
  let isStopped = false

  const schedule = (chore: Chore): void => {
    if (isStopped) return
    const stop = clock.after(chore.everyMs, () => {
      const run = runOnce(chore, logger).finally(() => {
        running.delete(run)
        schedule(chore)
      })
      running.add(run)
    })
    stops.set(chore, stop)
  }
  for (const chore of chores) schedule(chore)
  return {
    async [Symbol.asyncDispose]() {
      isStopped = true
      for (const stop of stops.values()) stop()
      await Promise.all(running)
    },
  }
}

async function runOnce({ name, work }: Chore, logger: Logger): Promise<void> {
  try {
    await work()
  } catch (error) {
    logger.warn({ err: error, chore: name }, 'a chore of the server failed and will be tried again')
  }
}
