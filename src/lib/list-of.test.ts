import fc from 'fast-check'
import { expect, test } from 'vitest'
import * as z from 'zod'
import { listOf } from './list-of.ts'

const Element = z.union([z.string(), z.looseObject({ a: z.array(z.number()) })])

test('listOf() accepts what z.array() accepts and gives the same value', () => {
  const valid = fc.oneof(fc.string(), fc.record({ a: fc.array(fc.integer()), b: fc.jsonValue() }))
  fc.assert(
    fc.property(fc.array(fc.oneof({ weight: 5, arbitrary: valid }, fc.jsonValue())), (value) => {
      const expected = z.object({ list: z.array(Element) }).safeParse({ list: value })
      const found = z.object({ list: listOf(Element) }).safeParse({ list: value })
      expect(found.success).toBe(expected.success)
      expect(found.data).toEqual(expected.data)
      expect(found.error?.issues).toEqual(expected.error?.issues.slice(0, 1))
    }),
  )
})

test('listOf() reads no element after the first wrong one', () => {
  let read = 0
  const Counted = z.custom((value) => {
    read += 1
    return value === 'right'
  })
  const wrong = ['right', ...Array.from({ length: 1000 }, () => 'wrong')]
  expect(listOf(Counted).safeParse(wrong).error?.issues).toMatchObject([{ path: [1] }])
  expect(read).toBe(2)
})

test('listOf() rejects lists that are too short, and values that are no list', () => {
  expect(listOf(z.string(), { min: 1 }).safeParse([]).success).toBe(false)
  expect(listOf(z.string()).safeParse({ length: 0 }).success).toBe(false)
})
