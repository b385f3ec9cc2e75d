/** Source of time, which tests replace. */
export interface Clock {
  /** Unix milliseconds. */
  now(): number
  /** Calls `call` once after `ms`. The returned function cancels the call. */
  after(ms: number, call: () => void): () => void
}

/** A clock that also measures durations; the wall clock jumps when it is set. */
export interface MonotonicClock extends Clock {
  /** Milliseconds since an arbitrary moment. Never decreases or jumps. */
  monotonic(): number
}

/** Timers of Node are limited to 31 bits, so longer waits use several timers. */
const LONGEST_TIMER_MS = 2 ** 31 - 1

export const systemClock: MonotonicClock = {
  now: Date.now,
  monotonic: () => performance.now(),
  after(ms, call) {
    let timer: NodeJS.Timeout
    const wait = (left: number): void => {
      const piece = Math.min(Math.max(left, 0), LONGEST_TIMER_MS)
      timer = setTimeout(() => (left > piece ? wait(left - piece) : call()), piece)
    }
    wait(ms)
    return () => clearTimeout(timer)
  },
}
