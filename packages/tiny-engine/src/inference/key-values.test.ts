import fc from 'fast-check'
import { expect, test } from 'vitest'
import { byteLengthOf, emptyKeyValues, joinKeyValues, sliceKeyValues } from './key-values.ts'
import type { KeyValues } from './key-values.ts'

const HEADS = 2
const SIZE = 3

/** Element values that encode their position. */
function numbered(length: number): KeyValues {
  const tensor = (index: number) =>
    Float32Array.from({ length: HEADS * length * SIZE }, (_, i) => {
      const [head, token, element] = [Math.floor(i / (length * SIZE)), Math.floor(i / SIZE) % length, i % SIZE]
      return index * 1e5 + head * 1e4 + token * 10 + element
    })
  return { length, tensors: [0, 1, 2].map(tensor) }
}

test('joinKeyValues() of two parts equals the whole', () => {
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 20 }), fc.nat(), (length, at) => {
      const whole = numbered(length)
      const from = at % length
      const tail = sliceKeyValues(whole, from, HEADS)
      const head = from === 0 ? undefined : numbered(from)
      expect(tail.length).toBe(length - from)
      expect(joinKeyValues(head === undefined ? [tail] : [head, tail], HEADS)).toEqual(whole)
    }),
  )
})

test('sliceKeyValues() copies, so that the whole can be freed', () => {
  const whole = numbered(4)
  const part = sliceKeyValues(whole, 2, HEADS)
  expect(part.tensors[0]!.buffer.byteLength).toBe(part.tensors[0]!.byteLength)
  expect(byteLengthOf(part)).toBe(byteLengthOf(whole) / 2)
})

test('emptyKeyValues() has a key and a value for each layer', () => {
  const shape = { vocabularySize: 8, hiddenSize: 4, layers: 5, keyValueHeads: 2, headSize: 3, maxLength: 100, eosId: 0 }
  expect(emptyKeyValues(shape)).toMatchObject({ length: 0, tensors: { length: 10 } })
})
