import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { createRandom } from './random.ts'
import { logSumExp, sampleToken } from './sampler.ts'
import type { TokenHistory, SamplerParams } from './sampler.ts'

const neutral: SamplerParams = {
  temperature: 1,
  topP: 1,
  topK: 0,
  minP: 0,
  repetitionPenalty: 1,
  presencePenalty: 0,
  frequencyPenalty: 0,
  logitBias: new Map(),
  minTokens: 0,
  stopTokenIds: [],
  topLogprobs: 0,
}
const nothingYet: TokenHistory = { promptIds: new Set(), counts: new Map(), length: 0, eosId: 0 }

const anyLogits = fc
  .array(fc.float({ min: -30, max: 30, noNaN: true }), { minLength: 2, maxLength: 64 })
  .map((values) => Float32Array.from(values))
const anySeed = fc.integer({ min: -(2 ** 40), max: 2 ** 50 })

describe('random numbers', () => {
  test('depend on the seed, are in [0, 1), and are uniform', () => {
    const draws = take(20_000, createRandom(7))
    expect(take(20_000, createRandom(7))).toEqual(draws)
    expect(draws.every((value) => value >= 0 && value < 1)).toBe(true)
    const bins = countBy(draws, (value) => Math.floor(value * 20))
    expect(chiSquare(bins, Array<number>(20).fill(1 / 20), draws.length)).toBeLessThan(CHI_SQUARE_19)
  })

  test('of adjacent, negative and large seeds are unrelated', () => {
    const seeds = [0, 1, 2, -1, -2, 2 ** 32, 2 ** 32 + 1, 2 ** 52]
    const first = seeds.map((seed) => createRandom(seed)())
    expect(new Set(first).size).toBe(seeds.length)
    const means = Array.from({ length: 1000 }, (_, seed) => createRandom(seed)())
    const bins = countBy(means, (value) => Math.floor(value * 20))
    expect(chiSquare(bins, Array<number>(20).fill(1 / 20), means.length)).toBeLessThan(CHI_SQUARE_19)
  })
})

describe('the reported distribution', () => {
  test('is the raw distribution, which sums to one, independent of the sampling parameters', () => {
    const params = { ...neutral, temperature: 0.3, topK: 3, logitBias: new Map([[1, 5]]), topLogprobs: -1 }
    fc.assert(
      fc.property(anyLogits, anySeed, (logits, seed) => {
        const token = sampleToken(logits, params, nothingYet, createRandom(seed))
        const sum = token.top.reduce((total, { logprob }) => total + Math.exp(logprob), 0)
        expect(sum).toBeCloseTo(1, 4)
        expect(token.top.find(({ id }) => id === token.id)?.logprob).toBe(token.logprob)
        expect(token.logprob).toBeCloseTo(logits[token.id]! - logSumExp(logits), 4)
      }),
    )
  })

  test('is ordered by descending probability, equal probabilities by id', () => {
    fc.assert(
      fc.property(anyLogits, fc.integer({ min: -1, max: 80 }), (logits, topLogprobs) => {
        const { top } = sampleToken(logits, { ...neutral, topLogprobs }, nothingYet, createRandom(1))
        const expected = [...logits.keys()].toSorted((a, b) => logits[b]! - logits[a]! || a - b)
        expect(top.map(({ id }) => id)).toEqual(topLogprobs < 0 ? expected : expected.slice(0, topLogprobs))
      }),
    )
  })

  test('has ranks one lower than vLLM’s: the number of other tokens at least as likely', () => {
    const logits = Float32Array.of(2, 5, 5, 1)
    const rankOf = (id: number) =>
      sampleToken(logits, { ...neutral, temperature: 0, logitBias: new Map([[id, 100]]) }, nothingYet, createRandom(1))
        .rank
    expect([0, 1, 2, 3].map(rankOf)).toEqual([2, 1, 1, 3])
  })
})

describe('sampling probabilities', () => {
  test('equal the softmax', () => {
    const logits = Float32Array.of(1, 0, 2, -1, 0.5)
    expectDistribution(logits, neutral, softmax(logits))
  })

  test('are sharpened and flattened by temperature', () => {
    const logits = Float32Array.of(1, 0, 2, -1, 0.5)
    expectDistribution(logits, { ...neutral, temperature: 0.5 }, softmax(logits.map((value) => value / 0.5)))
    expectDistribution(logits, { ...neutral, temperature: 1e30 }, Array<number>(5).fill(0.2))
  })

  test('keep their proportions within topK, topP and minP', () => {
    const logits = Float32Array.from([0.4, 0.3, 0.2, 0.07, 0.03], Math.log)
    expectDistribution(logits, { ...neutral, topK: 2 }, [4 / 7, 3 / 7, 0, 0, 0])
    expectDistribution(logits, { ...neutral, topP: 0.75 }, [4 / 9, 3 / 9, 2 / 9, 0, 0])
    expectDistribution(logits, { ...neutral, minP: 0.6 }, [4 / 7, 3 / 7, 0, 0, 0])
  })

  test('are limited by topP after topK', () => {
    const logits = Float32Array.from([0.4, 0.3, 0.2, 0.07, 0.03], Math.log)
    // Of the two tokens within topK, the first has 4/7 > 0.5 of the mass; of all five it would have only 0.4.
    expectDistribution(logits, { ...neutral, topK: 2, topP: 0.5 }, [1, 0, 0, 0, 0])
  })

  test('are limited by minP after temperature', () => {
    const logits = Float32Array.from([0.4, 0.3, 0.2, 0.07, 0.03], Math.log)
    const flat = softmax(logits.map((value) => value / 10))
    expectDistribution(logits, { ...neutral, temperature: 10, minP: 0.7 }, flat)
  })

  test('are reduced by penalties: repetition for prompt and answer, the other penalties for the answer only', () => {
    const logits = Float32Array.of(1, 1, 1, -1)
    const history = { ...nothingYet, promptIds: new Set([0, 3]), counts: new Map([[1, 3]]), length: 3 }
    const oddsFor = (params: Partial<SamplerParams>, adjusted: number[]) =>
      expectDistribution(logits, { ...neutral, ...params }, softmax(Float32Array.from(adjusted)), history)
    oddsFor({ repetitionPenalty: 2 }, [0.5, 0.5, 1, -2])
    oddsFor({ presencePenalty: 0.5 }, [1, 0.5, 1, -1])
    oddsFor({ frequencyPenalty: 0.5 }, [1, -0.5, 1, -1])
  })
})

test('temperature 0 returns the likeliest token, the first of equals, and draws no random number', () => {
  const never = () => expect.unreachable('a greedy choice draws nothing')
  fc.assert(
    fc.property(anyLogits, (logits) => {
      const { id } = sampleToken(logits, { ...neutral, temperature: 0 }, nothingYet, never)
      expect(id).toBe(logits.indexOf(Math.max(...logits)))
    }),
  )
})

test('the sampled token is one of the k likeliest', () => {
  fc.assert(
    fc.property(anyLogits, fc.integer({ min: 1, max: 80 }), anySeed, (logits, topK, seed) => {
      const { rank, id } = sampleToken(logits, { ...neutral, topK, temperature: 3 }, nothingYet, createRandom(seed))
      const more = logits.filter((value) => value > logits[id]!).length
      expect(more).toBeLessThan(topK)
      expect(rank).toBeGreaterThanOrEqual(more)
    }),
  )
})

test('the sampled token is in the nucleus: the likelier tokens have less than topP of the mass', () => {
  fc.assert(
    fc.property(anyLogits, fc.double({ min: 0.001, max: 0.999, noNaN: true }), anySeed, (logits, topP, seed) => {
      const { id } = sampleToken(logits, { ...neutral, topP }, nothingYet, createRandom(seed))
      const likelier = softmax(logits).filter((_, other) => logits[other]! > logits[id]! + 1e-6)
      expect(likelier.reduce((sum, value) => sum + value, 0)).toBeLessThanOrEqual(topP + 1e-6)
    }),
  )
})

test('before minTokens neither the end of turn nor a stop id is sampled', () => {
  const params = { ...neutral, minTokens: 2, stopTokenIds: [2, 99], logitBias: new Map([[2, 100]]) }
  const logits = Float32Array.of(50, 0, 60, 1)
  const ids = (length: number) => countsOf(logits, params, { ...nothingYet, length }, 200)
  expect(ids(1)[0]! + ids(1)[2]!).toBe(0)
  expect(ids(2)[2]).toBe(200)
})

test('the same seed samples the same tokens', () => {
  fc.assert(
    fc.property(anyLogits, anySeed, (logits, seed) => {
      expect(countsOf(logits, neutral, nothingYet, 20, seed)).toEqual(countsOf(logits, neutral, nothingYet, 20, seed))
    }),
  )
})

describe('extreme parameters return a token of the vocabulary and no NaN', () => {
  const extremes: Record<string, Partial<SamplerParams>> = {
    'a huge temperature': { temperature: Number.MAX_VALUE },
    'a tiny temperature': { temperature: 1.1e-5 },
    'topK beyond the vocabulary': { topK: 1e9 },
    'topK -1': { topK: -1 },
    'a tiny topP': { topP: Number.MIN_VALUE },
    'minP 1': { minP: 1 },
    'an infinite bias': { logitBias: new Map([[1, Infinity]]) },
    'a ban': { logitBias: new Map([[1, -Infinity]]) },
    'a bias for an id that does not exist': { logitBias: new Map([[1000, 5]]) },
    'a ban of everything': { logitBias: new Map(Array.from({ length: 64 }, (_, id) => [id, -Infinity])) },
  }
  const withGaps = anyLogits.map((logits) => logits.map((value, id) => (id % 3 === 2 ? -Infinity : value)))
  test.each(Object.entries(extremes))('%s', (_name, params) => {
    fc.assert(
      fc.property(withGaps, anySeed, (logits, seed) => {
        const token = sampleToken(logits, { ...neutral, topLogprobs: 5, ...params }, nothingYet, createRandom(seed))
        expect(logits[token.id]).toBeGreaterThan(-Infinity)
        expect(token.logprob).toBeLessThanOrEqual(1e-6)
        expect(token.top.some(({ logprob }) => Number.isNaN(logprob))).toBe(false)
      }),
    )
  })
})

/** A correct sampler exceeds these once in ten thousand runs; seeds are fixed, so results are reproducible. */
const CHI_SQUARE_4 = 23.5
const CHI_SQUARE_19 = 50

function expectDistribution(
  logits: Float32Array,
  params: SamplerParams,
  expected: ArrayLike<number>,
  history = nothingYet,
): void {
  const draws = 20_000
  const counts = countsOf(logits, params, history, draws)
  expect(chiSquare(counts, expected, draws)).toBeLessThan(CHI_SQUARE_4)
}

function countsOf(
  logits: Float32Array,
  params: SamplerParams,
  history: TokenHistory,
  draws: number,
  seed = 11,
): number[] {
  const random = createRandom(seed)
  const counts = Array<number>(logits.length).fill(0)
  for (let i = 0; i < draws; i++) counts[sampleToken(logits, params, history, random).id]!++
  return counts
}

function chiSquare(counts: readonly number[], expected: ArrayLike<number>, draws: number): number {
  return counts.reduce((sum, count, id) => {
    const mean = expected[id]! * draws
    if (mean === 0) return count === 0 ? sum : Infinity
    return sum + (count - mean) ** 2 / mean
  }, 0)
}

function softmax(logits: Float32Array): number[] {
  const normaliser = logSumExp(logits)
  return Array.from(logits, (value) => Math.exp(value - normaliser))
}

function countBy(values: readonly number[], binOf: (value: number) => number): number[] {
  const bins: number[] = []
  for (const value of values) bins[binOf(value)] = (bins[binOf(value)] ?? 0) + 1
  return bins
}

function take(count: number, random: () => number): number[] {
  return Array.from({ length: count }, random)
}
