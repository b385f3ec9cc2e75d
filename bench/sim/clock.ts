import type { Clock } from '../../src/lib/async/clock.ts'

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
  readonly #heap = new TimerHeap()
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
    let timer = this.#heap.pop()
    if (timer === undefined) return false
    this.#elapsed = timer.at
    while (timer !== undefined) {
      timer.call?.()
      this.fired += 1
      timer = this.#heap.first?.at === this.#elapsed ? this.#heap.pop() : undefined
    }
    return true
  }

  /** Resolves when every promise that can continue has continued, and no real work is in progress. */
  async #settle(): Promise<void> {
    do {
      if (this.#outside > 0) await new Promise<void>((resolve) => (this.#wake = resolve))
      await new Promise((resolve) => setImmediate(resolve))
    } while (this.#outside > 0)
  }
}

/** Timers by due time, then in the order they were set. */
class TimerHeap {
  readonly #timers: Timer[] = []

  /** Removes cancelled timers from the top. */
  get first(): Timer | undefined {
    for (;;) {
      const [top] = this.#timers
      if (top === undefined || top.call !== undefined) return top
      this.#removeTop()
    }
  }

  pop(): Timer | undefined {
    const top = this.first
    if (top !== undefined) this.#removeTop()
    return top
  }

  push(timer: Timer): void {
    const timers = this.#timers
    let i = timers.length
    timers.push(timer)
    while (i > 0) {
      const parent = (i - 1) >> 1
      if (!isBefore(timer, timers[parent]!)) break
      timers[i] = timers[parent]!
      i = parent
    }
    timers[i] = timer
  }

  #removeTop(): void {
    const timers = this.#timers
    const last = timers.pop()!
    if (timers.length === 0) return
    let i = 0
    for (;;) {
      let child = 2 * i + 1
      if (child >= timers.length) break
      if (child + 1 < timers.length && isBefore(timers[child + 1]!, timers[child]!)) child += 1
      if (!isBefore(timers[child]!, last)) break
      timers[i] = timers[child]!
      i = child
    }
    timers[i] = last
  }
}

function isBefore(a: Timer, b: Timer): boolean {
  return a.at < b.at || (a.at === b.at && a.order < b.order)
}
