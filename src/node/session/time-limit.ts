import type { Clock, MonotonicClock } from '../../lib/async/clock.ts'
import { onAbort } from '../../lib/async/until-aborted.ts'
import { RolloutError, type FailureCode } from '../../model/failure.ts'

export interface Limit {
  ms: number
  /** Failure code and message after the limit is reached. */
  code: FailureCode
  message: string
}

/** How long work may take to stop after its signal is aborted before it is abandoned. */
const GRACE_MS = 15_000

/**
 * Runs work under a time limit and an outer signal; both abort the signal of the work, whose reason is the cause. Then
 * waits for the work to settle, so that no part of it runs on unnoticed; work that does not settle within the grace time
 * is abandoned and fails as `runtime.gone`. Resolves with the value of the work, even after an abort; rejects with the
 * reason of the abort, or else with the error of the work.
 */
export async function withTimeLimit<T>(
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
    const message = `A step of the session was aborted (${String(reason)}) and did not end within ${GRACE_MS} ms.`
    stopGrace = clock.after(GRACE_MS, () => abandoned.reject(new RolloutError('runtime.gone', message)))
  }
  const stopTimer = clock.after(limit.ms, () => stop(new RolloutError(limit.code, limit.message)))
  using _ = onAbort(outer, () => stop(outer.reason))
  try {
    return await Promise.race([attempt(work, inner.signal), abandoned.promise])
  } finally {
    stopTimer()
    stopGrace()
  }
}

/** An error after an abort is replaced by the reason of the abort. */
async function attempt<T>(work: (signal: AbortSignal) => Promise<T>, signal: AbortSignal): Promise<T> {
  try {
    return await work(signal)
  } catch (error) {
    signal.throwIfAborted()
    throw error
  }
}

export interface SessionLimits {
  initMs: number
  agentMs: number
  evaluateMs: number
  /** Limits init and agent together. Grading is not part of it: a session that used up its time is still graded. */
  sessionMs: number
}

const TIMED_STEPS = {
  init: { limit: 'initMs', code: 'session.init-timeout', what: 'Preparing the sandbox' },
  agent: { limit: 'agentMs', code: 'session.agent-timeout', what: 'The agent' },
  evaluate: { limit: 'evaluateMs', code: 'evaluator.timeout', what: 'Grading' },
} as const

/** Applies the time limits of one session to its steps. Time in queues is not counted. */
export class StepTimer {
  readonly #limits: SessionLimits
  readonly #clock: MonotonicClock
  readonly #cancel: AbortSignal
  #spentMs = 0

  constructor(limits: SessionLimits, clock: MonotonicClock, cancel: AbortSignal) {
    this.#limits = limits
    this.#clock = clock
    this.#cancel = cancel
  }

  async limit<T>(step: keyof typeof TIMED_STEPS, work: (signal: AbortSignal) => Promise<T>): Promise<T> {
    const { limit, code, what } = TIMED_STEPS[step]
    const stepMs = this.#limits[limit]
    const leftMs = step === 'evaluate' ? Infinity : this.#limits.sessionMs - this.#spentMs
    const ms = Math.max(0, Math.min(stepMs, leftMs))
    const which = leftMs < stepMs ? 'the time left of the whole session’s limit' : 'its time limit'
    const message = `${what} took longer than ${which}, ${(ms / 1000).toFixed(1)} s.`
    const startedAt = this.#clock.monotonic()
    try {
      return await withTimeLimit({ ms, code, message }, { clock: this.#clock, signal: this.#cancel }, work)
    } finally {
      this.#spentMs += this.#clock.monotonic() - startedAt
    }
  }
}
