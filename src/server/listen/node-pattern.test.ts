import fc from 'fast-check'
import { expect, test } from 'vitest'
import { matchesNode, mayActFor } from './node-pattern.ts'

test.each([
  ['gpu-1', 'gpu-1', true],
  ['gpu-1', 'gpu-10', false],
  ['gpu-1', 'xgpu-1', false],
  ['gpu-*', 'gpu-7', true],
  ['gpu-*', 'gpu-', true],
  ['gpu-*', 'gpu', false],
  ['gpu-*', 'cpu-gpu-7', false],
  ['gpu-*', 'GPU-7', false],
  ['*-gpu', 'rack.1-gpu', true],
  ['*-gpu', 'rack-gpu-2', false],
  ['rack1-*-gpu', 'rack1-a-gpu', true],
  ['rack1-*-gpu', 'rack1-gpu', false],
  ['a*a', 'a', false],
  ['a*a', 'aa', true],
  ['ab*ba', 'aba', false],
  ['*a*b*', 'xaxbx', true],
  ['*a*b*', 'ba', false],
  ['*', 'anything', true],
  // Regular expression characters are literal.
  ['gpu.1', 'gpuX1', false],
  ['gpu.1', 'gpu.1', true],
])('%s and %s: %s', (pattern, nodeId, expected) => {
  expect(matchesNode(pattern, nodeId)).toBe(expected)
})

test('matchesNode() agrees with the equivalent regular expression', () => {
  const anyText = fc.string({ unit: fc.constantFrom('a', 'b', '*', '.'), maxLength: 8 })
  fc.assert(
    fc.property(anyText, anyText, (pattern, text) => {
      const nodeId = text.replaceAll('*', 'b')
      const same = new RegExp(`^${pattern.replaceAll('.', '\\.').replaceAll('*', '.*')}$`)
      expect(matchesNode(pattern, nodeId)).toBe(same.test(nodeId))
    }),
    { numRuns: 5000 },
  )
})

test('mayActFor() matches any of several patterns, and all ids without patterns', () => {
  expect(mayActFor(['a', 'b-*'], 'b-1')).toBe(true)
  expect(mayActFor(['a', 'b-*'], 'c')).toBe(false)
  expect(mayActFor(undefined, 'c')).toBe(true)
})
