import fc from 'fast-check'
import { expect, test } from 'vitest'
import { commonPrefix, commonPrefixOfIds, commonSuffix } from './common-prefix.ts'

const anyText = fc.string({ unit: fc.constantFrom('a', 'b', '🎉'), maxLength: 40 })
const anyIds = fc.array(fc.constantFrom(0, 1, -1), { maxLength: 40 })

test('commonPrefix() and commonSuffix() agree with a loop', () => {
  fc.assert(
    fc.property(anyText, anyText, anyText, fc.nat(50), (shared, a, b, limit) => {
      const [left, right] = [`${shared}${a}${shared}`, `${shared}${b}${shared}`]
      let prefix = 0
      while (prefix < Math.min(left.length, right.length) && left[prefix] === right[prefix]) prefix += 1
      expect(commonPrefix(left, right)).toBe(prefix)
      let suffix = 0
      const most = Math.min(left.length, right.length, limit)
      while (suffix < most && left.at(-1 - suffix) === right.at(-1 - suffix)) suffix += 1
      expect(commonSuffix(left, right, limit)).toBe(suffix)
    }),
  )
})

test('commonPrefixOfIds() agrees with a loop, also for views', () => {
  fc.assert(
    fc.property(anyIds, anyIds, anyIds, (shared, a, b) => {
      const left = Int32Array.from([7, ...shared, ...a]).subarray(1)
      const right = Int32Array.from([8, 8, ...shared, ...b]).subarray(2)
      let prefix = 0
      while (prefix < Math.min(left.length, right.length) && left[prefix] === right[prefix]) prefix += 1
      expect(commonPrefixOfIds(left, right)).toBe(prefix)
    }),
  )
})
