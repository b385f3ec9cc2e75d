import { expect, test } from 'vitest'
import { mergeTrees } from './merge-trees.ts'

test('mergeTrees() merges objects, and replaces other values', () => {
  const earlier = { a: { b: 1, c: [1, 2] }, d: 'x', e: { f: 1 } }
  expect(mergeTrees(earlier, { a: { c: [3], g: null }, d: { h: 1 }, e: 2 })).toEqual({
    a: { b: 1, c: [3], g: null },
    d: { h: 1 },
    e: 2,
  })
  expect(earlier).toEqual({ a: { b: 1, c: [1, 2] }, d: 'x', e: { f: 1 } })
})
