/** A stream of chances that a seed decides. */
export interface Chance {
  /** From 0 up to 1. */
  next(): number
  /** Whether what happens so often happens now. */
  happens(probability: number): boolean
  /** A whole number from `low` to `high`, both among them. */
  between(low: number, high: number): number
  pick<T>(from: readonly T[]): T
  /** Another stream, so that one part's luck does not hang on how often another asked. */
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
