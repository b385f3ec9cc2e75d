/** Seeded random choices: the same seed generates the same attacks. */
export class Random {
  #state: number

  constructor(seed: number) {
    this.#state = seed >>> 0
  }

  /** Returns a number in [0, 1) (mulberry32). */
  next(): number {
    this.#state = (this.#state + 0x6d2b79f5) >>> 0
    let t = this.#state
    t = Math.imul(t ^ (t >>> 15), t | 1)
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61)
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32
  }

  /** Returns an integer in [0, limit). */
  below(limit: number): number {
    return Math.floor(this.next() * limit)
  }

  pick<T>(values: readonly T[]): T {
    return values[this.below(values.length)] as T
  }

  oneIn(count: number): boolean {
    return this.below(count) === 0
  }
}
