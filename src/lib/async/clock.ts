/** Where time comes from, so that tests can choose it. */
export interface Clock {
  /** Unix milliseconds. */
  now(): number
  /** Calls back once, after so long; what it returns takes that back. */
  after(ms: number, call: () => void): () => void
}

/** A clock for durations too: the wall clock jumps when it is set. */
export interface MonotonicClock extends Clock {
  /** Milliseconds since some moment. Never goes back, and does not jump. */
  monotonic(): number
}

/** Longer waits are cut into pieces: a timer of the platform holds 31 bits. */
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
