import fc from 'fast-check'
import { expect, test } from 'vitest'
import { holdsMoreMembersThan, holdsMoreValuesThan, nestsDeeperThan } from './json-depth.ts'

function depthOf(value: unknown): number {
  if (typeof value !== 'object' || value === null) return 0
  return 1 + Math.max(0, ...Object.values(value).map(depthOf))
}

test('nestsDeeperThan() agrees with the parsed value', () => {
  fc.assert(
    fc.property(fc.jsonValue({ maxDepth: 6 }), fc.nat(6), (value, limit) => {
      expect(nestsDeeperThan(Buffer.from(JSON.stringify(value)), limit)).toBe(depthOf(value) > limit)
    }),
  )
})

test('nestsDeeperThan() ignores brackets in strings, escaped quotes and backslashes included', () => {
  const text = String.raw`{"a\\": "[[[[\"[[[[", "b": "\\\"{{{{"}`
  expect(nestsDeeperThan(Buffer.from(text), 1)).toBe(false)
})

test('nestsDeeperThan() finds the end of a string among escapes of every length', () => {
  const text = fc.array(fc.constantFrom('"', '\\', '[', 'a', 'abc'.repeat(100)), { maxLength: 400, size: 'max' })
  fc.assert(
    fc.property(text, fc.boolean(), (parts, isDeep) => {
      const json = JSON.stringify({ text: parts.join(''), more: isDeep ? [[1]] : 1 })
      expect(nestsDeeperThan(Buffer.from(json), 2)).toBe(isDeep)
    }),
  )
})

test('nestsDeeperThan() stops at the first place that is too deep', () => {
  expect(nestsDeeperThan(Buffer.alloc(1 << 20, '['), 100)).toBe(true)
})

test('holdsMoreValuesThan() counts the values behind the first of each list and object', () => {
  const commas = (value: unknown): number => {
    if (typeof value !== 'object' || value === null) return 0
    const inner = Object.values(value)
    return Math.max(0, inner.length - 1) + inner.reduce<number>((sum, one) => sum + commas(one), 0)
  }
  fc.assert(
    fc.property(fc.jsonValue({ maxDepth: 4 }), fc.nat(10), (value, limit) => {
      expect(holdsMoreValuesThan(Buffer.from(JSON.stringify(value)), limit)).toBe(commas(value) > limit)
    }),
  )
})

test('holdsMoreMembersThan() counts objects, arrays and keys', () => {
  const members = (value: unknown): number => {
    if (typeof value !== 'object' || value === null) return 0
    const inner = Object.values(value)
    return 1 + (Array.isArray(value) ? 0 : inner.length) + inner.reduce<number>((sum, one) => sum + members(one), 0)
  }
  fc.assert(
    fc.property(fc.jsonValue({ maxDepth: 4 }), fc.nat(10), (value, limit) => {
      expect(holdsMoreMembersThan(Buffer.from(JSON.stringify(value)), limit)).toBe(members(value) > limit)
    }),
  )
})
