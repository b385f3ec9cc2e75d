import type { Clock } from '../../src/lib/async/clock.ts'
import { Heap } from './heap.ts'

interface Timer {
  at: number
  order: number
  /** Undefined once the timer was cancelled. */
  call: (() => void) | undefined
}

/** An arbitrary Unix time, so that simulated times look like real ones. */
const EPOCH_MS = Date.UTC(2030, 0, 1)

/**
 * Virtual time in whole milliseconds. It advances when no task can run at the current time. Real work, such as a database
 * statement, takes no virtual time unless the caller sleeps for it.
 */
export class VirtualClock implements Clock {
  #elapsed = 0
  #order = 0
  #outside = 0
  #wake = (): void => undefined
  #failure: { error: unknown } | undefined
  /** By due time, then in the order in which they were set. */
  readonly #heap = new Heap(isBefore)
  /** Number of timers that fired. */
  fired = 0

  /** Unix milliseconds. */
  now(): number {
    return EPOCH_MS + this.#elapsed
  }

  /** Milliseconds since the start of the simulation. */
  get elapsed(): number {
    return this.#elapsed
  }

  after(ms: number, call: () => void): () => void {
    const timer: Timer = { at: this.#elapsed + Math.max(0, Math.ceil(ms)), order: this.#order++, call }
    this.#heap.push(timer)
    return () => void (timer.call = undefined)
  }

  sleep(ms: number): Promise<void> {
    return new Promise((resolve) => void this.after(ms, resolve))
  }

  /** Stops the virtual time until the promise settles. */
  async outside<T>(work: Promise<T>): Promise<T> {
    this.#outside += 1
    try {
      return await work
    } finally {
      this.#outside -= 1
      if (this.#outside === 0) this.#wake()
    }
  }

  /** Ends the simulation: an unawaited promise must not fail without an error. */
  readonly fail = (error: unknown): void => {
    this.#failure ??= { error }
  }

  async run(isOver: () => boolean): Promise<void> {
    for (;;) {
      await this.#settle()
      if (this.#failure !== undefined) throw this.#failure.error
      if (isOver()) return
      if (!this.#fire()) throw new Error('the simulation is stuck: there is no timer left')
    }
  }

  /** Fires all timers of the next due time. */
  #fire(): boolean {
    const next = this.#next()
    if (next === undefined) return false
    this.#elapsed = next.at
    for (let timer = this.#next(); timer?.at === next.at; timer = this.#next()) {
      this.#heap.pop()
      timer.call?.()
      this.fired += 1
    }
    return true
  }

  /** Removes cancelled timers from the top of the heap. */
  #next(): Timer | undefined {
    while (this.#heap.first !== undefined && this.#heap.first.call === undefined) this.#heap.pop()
    return this.#heap.first
  }

  /** Resolves when every promise that can continue has continued, and no real work is in progress. */
  async #settle(): Promise<void> {
    do {
      if (this.#outside > 0) await new Promise<void>((resolve) => (this.#wake = resolve))
      await new Promise((resolve) => setImmediate(resolve))
    } while (this.#outside > 0)
  }
}

function isBefore(a: Timer, b: Timer): boolean {
  return a.at < b.at || (a.at === b.at && a.order < b.order)
}
