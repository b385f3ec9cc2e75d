/** Returns numbers between 0 and 1 that depend only on the seed and the name. */
export type Random = () => number

export function createRandom(seed: number, name: string): Random {
  let state = seed | 0
  for (let i = 0; i < name.length; i += 1) state = Math.imul(state ^ name.charCodeAt(i), 0x01000193)
  // One round first: names that differ in their last letter would otherwise begin with similar numbers.
  const next = (): number => {
    state = (state + 0x6d2b79f5) | 0
    let mixed = Math.imul(state ^ (state >>> 15), state | 1)
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }
  next()
  return next
}

/** Distribution of a duration in milliseconds. */
export type Durations =
  | { kind: 'lognormal'; medianMs: number; sigma: number }
  /** Never less than `leastMs`; the smaller `alpha`, the longer the tail. With 1 or less there is no mean. */
  | { kind: 'pareto'; leastMs: number; alpha: number }
  | { kind: 'fixed'; ms: number }

/** `z` is a normal deviate that is shared: with it all samples of one task are longer or shorter together. */
export function drawMs(durations: Durations, random: Random, z = normal(random)): number {
  switch (durations.kind) {
    case 'lognormal':
      return durations.medianMs * Math.exp(durations.sigma * z)
    case 'pareto':
      return durations.leastMs / (1 - toUniform(z)) ** (1 / durations.alpha)
    case 'fixed':
      return durations.ms
  }
}

export function exponential(meanMs: number, random: Random): number {
  return -meanMs * Math.log(1 - random())
}

export function normal(random: Random): number {
  return Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random())
}

/** The share of a normal distribution below `z` (Abramowitz and Stegun 7.1.26), kept off 1. */
function toUniform(z: number): number {
  const x = Math.abs(z) / Math.SQRT2
  const t = 1 / (1 + 0.327_591_1 * x)
  const poly = ((((1.061_405_429 * t - 1.453_152_027) * t + 1.421_413_741) * t - 0.284_496_736) * t + 0.254_829_592) * t
  const erf = 1 - poly * Math.exp(-x * x)
  return Math.min(0.5 * (1 + Math.sign(z) * erf), 1 - 1e-9)
}
