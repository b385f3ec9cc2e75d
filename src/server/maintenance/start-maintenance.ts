import type { Logger } from 'pino'
import type { Clock } from '../../lib/async/clock.ts'

/** Background work that repeats. */
export interface MaintenanceJob {
  name: string
  /** From the end of one run to the start of the next. */
  everyMs: number
  /** The signal is aborted when the server stops: a long run must end soon, and continues at the next start. */
  work: (signal: AbortSignal) => Promise<unknown>
}

/** Runs each job independently. A failed run is logged and repeated at its next time; disposing waits for running jobs. */
export function startMaintenance(
  jobs: readonly MaintenanceJob[],
  { clock, logger }: { clock: Clock; logger: Logger },
): AsyncDisposable {
  const running = new Set<Promise<void>>()
  const timers = new Map<MaintenanceJob, () => void>()
  const stop = new AbortController()

  const schedule = (job: MaintenanceJob): void => {
    if (stop.signal.aborted) return
    const cancel = clock.after(job.everyMs, () => {
      const run = runOnce(job, stop.signal, logger).finally(() => {
        running.delete(run)
        schedule(job)
      })
      running.add(run)
    })
    timers.set(job, cancel)
  }
  for (const job of jobs) schedule(job)
  return {
    async [Symbol.asyncDispose]() {
      stop.abort()
      for (const cancel of timers.values()) cancel()
      await Promise.all(running)
    },
  }
}

async function runOnce({ name, work }: MaintenanceJob, signal: AbortSignal, logger: Logger): Promise<void> {
  try {
    await work(signal)
  } catch (error) {
    logger.warn({ err: error, job: name }, 'maintenance job failed and will be retried')
  }
}
