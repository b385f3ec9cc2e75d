import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { alignLogprobs } from './llamacpp-align.ts'

const listed = (...ids: number[]) => ids.map((id, i) => ({ id, logprob: -(i + 1) / 4 }))
const aligned = (ids: number[], some: number[]) => Array.from(alignLogprobs(ids, listed(...some)))

describe('alignLogprobs()', () => {
  test('gives each id its own when all are listed, repeated ids too', () => {
    expect(aligned([5, 5, 7], [5, 5, 7])).toEqual([-0.25, -0.5, -0.75])
  })

  test('leaves a gap where tokens are missing', () => {
    expect(aligned([1, 240, 159, 152, 128, 2], [1, 128, 2])).toEqual([-0.25, NaN, NaN, NaN, -0.5, -0.75])
  })

  test('leaves a tail that was cut off without numbers', () => {
    expect(aligned([1, 2, 3, 4], [1, 2])).toEqual([-0.25, -0.5, NaN, NaN])
  })

  test('gives a number to nobody when it could belong to two', () => {
    // The first 9 may be half of a character, or the second the other half.
    expect(aligned([1, 9, 8, 9, 2], [1, 9, 2])).toEqual([-0.25, NaN, NaN, NaN, -0.5 - 0.25])
  })

  test('gives no numbers at all when the list is not of these ids', () => {
    expect(aligned([1, 2, 3], [1, 4])).toEqual([NaN, NaN, NaN])
    expect(aligned([], [1])).toEqual([])
    expect(aligned([1], [])).toEqual([NaN])
  })

  test('is never wrong, whatever was left out', () => {
    fc.assert(
      fc.property(fc.array(fc.tuple(fc.integer({ min: 0, max: 3 }), fc.boolean()), { maxLength: 40 }), (tokens) => {
        const ids = tokens.map(([id]) => id)
        const truth = tokens.map((_, i) => -(i + 1) / 64)
        const kept = tokens.flatMap(([id, isKept], i) => (isKept ? [{ id, logprob: truth[i]! }] : []))
        for (const [i, value] of alignLogprobs(ids, kept).entries()) {
          if (!Number.isNaN(value)) expect([tokens[i]?.[1], value]).toEqual([true, truth[i]])
        }
      }),
    )
  })
})
