/** How long to wait after failures in a row: doubling, of which a random half is spared, for ever. */
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
    const full = Math.min(this.#maxMs, this.#baseMs * 2 ** Math.min(this.#failures, 30))
    this.#failures += 1
    return full / 2 + (this.#random() * full) / 2
  }
}
