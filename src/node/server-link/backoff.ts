import { jitteredDelay } from '../../lib/async/jittered-delay.ts'

/** Delays between retries, growing with the failures in a row. The number of retries is not limited. */
export class Backoff {
  readonly #options: { baseMs: number; maxMs: number; random: () => number }
  #failures = 0

  constructor(options: { baseMs: number; maxMs: number; random: () => number }) {
    this.#options = options
  }

  reset(): void {
    this.#failures = 0
  }

  next(): number {
    this.#failures += 1
    return jitteredDelay(this.#failures, this.#options, this.#options.random())
  }
}
