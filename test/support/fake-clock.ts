import type { MonotonicClock } from '../../src/lib/async/clock.ts'

interface Timer {
  at: number
  order: number
  call: () => void
}

/** A clock that tests advance. Time advances only when all work of the present moment is done. */
export class FakeClock implements MonotonicClock {
  #now: number
  /** Offset of the wall clock in milliseconds. */
  #jumped = 0
  #order = 0
  readonly #timers = new Set<Timer>()
  readonly #settle: () => Promise<void>

  /** `settle` resolves when all work of the present moment is done; default: when no promise can continue. */
  constructor(start = 1_000_000, settle = oneTurn) {
    this.#now = start
    this.#settle = settle
  }

  now(): number {
    return this.#now + this.#jumped
  }

  monotonic(): number {
    return this.#now
  }

  /** Sets the wall clock without effect on timers. */
  jump(ms: number): void {
    this.#jumped += ms
  }

  after(ms: number, call: () => void): () => void {
    const timer = { at: this.#now + Math.max(0, ms), order: this.#order++, call }
    this.#timers.add(timer)
    return () => void this.#timers.delete(timer)
  }

  /** Number of pending timers. */
  get pending(): number {
    return this.#timers.size
  }

  sleep(ms: number, signal?: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      signal?.throwIfAborted()
      const stop = this.after(ms, () => {
        signal?.removeEventListener('abort', abort)
        resolve()
      })
      const abort = (): void => {
        stop()
        reject(signal!.reason as Error)
      }
      signal?.addEventListener('abort', abort, { once: true })
    })
  }

  /** Advances time until the promise settles. Throws if no timer is left that could settle it. */
  async run<T>(work: Promise<T>): Promise<T> {
    let isDone = false
    const done = (): void => void (isDone = true)
    work.then(done, done)
    for (;;) {
      await this.#settle()
      if (isDone) return work
      if (!this.#fireNext()) throw new Error('nothing will ever happen again')
    }
  }

  /** Advances time by this many milliseconds. */
  async advance(ms: number): Promise<void> {
    const until = this.#now + ms
    for (;;) {
      await this.#settle()
      const next = this.#next()
      if (next === undefined || next.at > until) break
      this.#fireNext()
    }
    this.#now = until
  }

  #next(): Timer | undefined {
    let next: Timer | undefined
    for (const timer of this.#timers) {
      if (next === undefined || timer.at < next.at || (timer.at === next.at && timer.order < next.order)) next = timer
    }
    return next
  }

  #fireNext(): boolean {
    const next = this.#next()
    if (next === undefined) return false
    this.#timers.delete(next)
    this.#now = next.at
    next.call()
    return true
  }
}

/** Resolves when no promise can continue. */
function oneTurn(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve))
}
