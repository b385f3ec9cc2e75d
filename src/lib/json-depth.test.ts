import fc from 'fast-check'
import { expect, test } from 'vitest'
import { nestsDeeperThan } from './json-depth.ts'

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

test('nestsDeeperThan() stops at the first place that is too deep', () => {
  expect(nestsDeeperThan(Buffer.alloc(1 << 20, '['), 100)).toBe(true)
})
