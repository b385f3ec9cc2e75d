import type { Clock } from '../../lib/async/clock.ts'
import { RolloutError, type FailureCode } from '../../model/failure.ts'

export interface Limit {
  ms: number
  /** What it is called when it is passed, and in which words. */
  code: FailureCode
  message: string
}

/** How long work may take to stop after it was told to, before it is left behind. */
const GRACE_MS = 15_000

/**
 * Does work under a time limit and an outer signal. The work is told by its signal, whose reason says why, and is waited
 * for, so that nothing of it goes on behind our back; only work that does not listen is left behind, as `runtime.gone`.
 * Resolves with what the work gave, even if it was told to stop; rejects with why it was told, or with what it threw.
 */
export async function within<T>(
  limit: Limit,
  { clock, signal: outer }: { clock: Clock; signal: AbortSignal },
  work: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  outer.throwIfAborted()
  const inner = new AbortController()
  const abandoned = Promise.withResolvers<never>()
  let stopGrace = (): void => {}
  const stop = (reason: unknown): void => {
    if (inner.signal.aborted) return
    inner.abort(reason)
    stopGrace = clock.after(GRACE_MS, () =>
      abandoned.reject(
        new RolloutError('runtime.gone', `It was told to stop (${String(reason)}) and did not within ${GRACE_MS} ms.`),
      ),
    )
  }
  const stopTimer = clock.after(limit.ms, () => stop(new RolloutError(limit.code, limit.message)))
  const onAbort = (): void => stop(outer.reason)
  outer.addEventListener('abort', onAbort, { once: true })
  try {
    return await Promise.race([attempt(work, inner.signal), abandoned.promise])
  } finally {
    stopTimer()
    stopGrace()
    outer.removeEventListener('abort', onAbort)
  }
}

/** Work that ends with an error after it was told to stop ended for the reason it was told. */
async function attempt<T>(work: (signal: AbortSignal) => Promise<T>, signal: AbortSignal): Promise<T> {
  try {
    return await work(signal)
  } catch (error) {
    signal.throwIfAborted()
    throw error
  }
}
