import { jitteredDelay } from '../../lib/async/jittered-delay.ts'

/** Delays between retries, growing with the failures in a row. The number of retries is not limited. */
export class Backoff {
  readonly #baseMs: number
  readonly #maxMs: number
  readonly #random: () => number
  #failures = 0

  constructor({ baseMs, maxMs, random }: { baseMs: number; maxMs: number; random: () => number }) {
    this.#baseMs = baseMs
    this.#maxMs = maxMs
    this.#random = random
  }

  reset(): void {
    this.#failures = 0
  }

  next(): number {
    this.#failures += 1
    return jitteredDelay(this.#failures, { baseMs: this.#baseMs, maxMs: this.#maxMs }, this.#random())
  }
}
