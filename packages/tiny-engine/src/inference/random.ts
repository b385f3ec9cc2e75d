/** Returns numbers in [0, 1) with 53 random bits. */
export type Random = () => number

/**
 * sfc32 (Chris Doty-Humphrey's small fast counting generator): the same seed gives the same numbers on every machine.
 * Any integer is a seed; all 64 bits count.
 */
export function createRandom(seed: number): Random {
  let a = Math.floor(seed / 2 ** 32) | 0
  let b = (seed % 2 ** 32) | 0
  let c = 0
  let counter = 1
  const next = (): number => {
    const result = (a + b + counter) | 0
    counter = (counter + 1) | 0
    a = b ^ (b >>> 9)
    b = (c + (c << 3)) | 0
    c = (((c << 21) | (c >>> 11)) + result) | 0
    return result >>> 0
  }
  // Adjacent seeds start alike; after this many rounds every bit of the seed has affected every bit of the state.
  for (let round = 0; round < 16; round++) next()
  return () => ((next() >>> 5) * 2 ** 26 + (next() >>> 6)) / 2 ** 53
}
