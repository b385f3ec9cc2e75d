import { expect, test } from 'vitest'
import { isAtLeast } from './versions.ts'

test.each([
  ['0.27.1', '0.27', true],
  ['0.27.0', '0.27', true],
  ['0.9.3', '0.10', false],
  ['v0.10.2', '0.10.2', true],
  ['0.28.0rc2', '0.28', true],
  ['0.13.1.dev5+g1234567', '0.13', true],
  ['0.5.17.post1', '0.5.17', true],
  ['0.5.9', '0.5.13', false],
  ['1', '0.5.13', true],
  ['nightly', '0.1', false],
])('isAtLeast(%s, %s) is %s', (version, least, expected) => {
  expect(isAtLeast(version, least)).toBe(expected)
})
