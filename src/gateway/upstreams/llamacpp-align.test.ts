import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { alignLogprobs } from './llamacpp-align.ts'

const listed = (...ids: number[]) => ids.map((id, i) => ({ id, logprob: -(i + 1) / 4 }))
const aligned = (ids: number[], some: number[]) => Array.from(alignLogprobs(ids, listed(...some)))

describe('alignLogprobs()', () => {
  test('assigns each log probability when all ids are listed, also with repeated ids', () => {
    expect(aligned([5, 5, 7], [5, 5, 7])).toEqual([-0.25, -0.5, -0.75])
  })

  test('assigns NaN to missing tokens', () => {
    expect(aligned([1, 240, 159, 152, 128, 2], [1, 128, 2])).toEqual([-0.25, NaN, NaN, NaN, -0.5, -0.75])
  })

  test('assigns NaN to a missing tail', () => {
    expect(aligned([1, 2, 3, 4], [1, 2])).toEqual([-0.25, -0.5, NaN, NaN])
  })

  test('does not assign an entry that could belong to two ids', () => {
    // Either 9 may be one half of a character.
    expect(aligned([1, 9, 8, 9, 2], [1, 9, 2])).toEqual([-0.25, NaN, NaN, NaN, -0.5 - 0.25])
  })

  test('assigns nothing when the list does not match the ids', () => {
    expect(aligned([1, 2, 3], [1, 4])).toEqual([NaN, NaN, NaN])
    expect(aligned([], [1])).toEqual([])
    expect(aligned([1], [])).toEqual([NaN])
  })

  test('never assigns a log probability to another id, for any omission', () => {
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
