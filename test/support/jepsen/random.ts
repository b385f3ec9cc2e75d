/** A seeded stream of random numbers. */
export interface Chance {
  /** Returns a number in [0, 1). */
  next(): number
  /** Returns true with this probability. */
  happens(probability: number): boolean
  /** Returns an integer from `low` to `high`, inclusive. */
  between(low: number, high: number): number
  pick<T>(from: readonly T[]): T
  /** Returns an independent stream, so that one component does not affect the numbers of another. */
  fork(): Chance
}

export function createChance(seed: number): Chance {
  let state = seed >>> 0
  const next = (): number => {
    state = (state + 0x6d2b79f5) >>> 0
    let mixed = Math.imul(state ^ (state >>> 15), state | 1)
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }
  const between = (low: number, high: number): number => low + Math.floor(next() * (high - low + 1))
  return {
    next,
    between,
    happens: (probability) => next() < probability,
    pick: (from) => from[between(0, from.length - 1)]!,
    fork: () => createChance(between(0, 2 ** 31)),
  }
}
