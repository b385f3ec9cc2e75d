import fc from 'fast-check'
import { expect, test } from 'vitest'
import * as z from 'zod'
import { arrayOf, listOf, recordOf } from './list-of.ts'

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

test('arrayOf() and recordOf() report what zod reports, until there are many issues', () => {
  const lists = fc.array(fc.oneof(fc.string(), fc.integer()), { maxLength: 50 })
  const records = fc.dictionary(fc.string(), fc.oneof(fc.string(), fc.integer()))
  fc.assert(
    fc.property(lists, records, (list, record) => {
      const ours = z.object({ list: arrayOf(z.string()), record: recordOf(z.string()) }).safeParse({ list, record })
      const usual = z
        .object({ list: z.array(z.string()), record: z.record(z.string(), z.string()) })
        .safeParse({ list, record })
      expect(ours.data).toEqual(usual.data)
      expect(ours.error?.issues).toEqual(usual.error?.issues)
    }),
  )
})

test('arrayOf() and recordOf() stop after a thousand issues', () => {
  let read = 0
  const Counted = z.custom(() => {
    read += 1
    return false
  })
  const wrong = Array.from({ length: 100_000 }, (_, i) => i)
  expect(arrayOf(Counted).safeParse(wrong).error?.issues).toHaveLength(1000)
  expect(read).toBe(1000)
  expect(recordOf(Counted).safeParse(Object.fromEntries(wrong.entries())).error?.issues).toHaveLength(1000)
  expect(read).toBe(2000)
  expect(arrayOf(arrayOf(Counted)).safeParse(wrong.map(() => wrong)).error?.issues).toHaveLength(1000)
})

test('arrayOf() reads no element of a list that is too long', () => {
  const Counted = z.custom(() => expect.unreachable())
  const parsed = arrayOf(Counted).min(1).max(3).describe('few').safeParse([1, 2, 3, 4])
  expect(parsed.error?.issues).toMatchObject([{ code: 'too_big', maximum: 3 }])
})

test('listOf(), arrayOf() and recordOf() have the JSON schema of their usual forms', () => {
  const element = z.strictObject({ a: z.int().min(1) })
  const schemaOf = (schema: z.ZodType): unknown => z.toJSONSchema(z.object({ a: schema }), { io: 'input' })
  const usual = schemaOf(z.array(element).min(2).max(9).describe('Numbers.').optional())
  expect(schemaOf(arrayOf(element).min(2).max(9).describe('Numbers.').optional())).toEqual(usual)
  expect(schemaOf(listOf(element, { min: 1 }))).toEqual(schemaOf(z.array(element).min(1)))
  const record = z.record(z.string(), element).default({})
  expect(schemaOf(recordOf(element).default({}))).toEqual(schemaOf(record))
})

test('recordOf() takes no key for the prototype', () => {
  const parsed = recordOf(z.string()).parse(JSON.parse('{"__proto__": "x", "a": "y"}'))
  expect(Object.entries(parsed)).toEqual([['a', 'y']])
  expect(Object.getPrototypeOf(parsed)).toBe(Object.prototype)
})
