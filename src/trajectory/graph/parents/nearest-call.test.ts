import * as fc from 'fast-check'
import { expect, test } from 'vitest'
import { commonTokens, NearestCall } from './nearest-call.ts'

test('find() returns the latest call with the longest common prefix, for any number of calls', () => {
  // Lengths around two blocks of the index, and few different continuations, so that ties are frequent.
  const sequence = fc.record({
    same: fc.integer({ min: 120, max: 260 }),
    rest: fc.int32Array({ min: 1, max: 2, maxLength: 6 }),
  })
  const text = Int32Array.from({ length: 260 }, (_, i) => 10 + i)
  fc.assert(
    fc.property(fc.array(sequence, { minLength: 1, maxLength: 40, size: 'max' }), (list) => {
      const nearest = new NearestCall()
      const added: { promptIds: Int32Array; ids: Int32Array }[] = []
      for (const { same, rest } of list) {
        const promptIds = Int32Array.of(...text.subarray(0, same), ...rest)
        const common = added.map((one) => commonTokens(promptIds, one))
        const most = Math.max(...common)
        const expected = added.length === 0 ? undefined : { index: common.lastIndexOf(most), common: most }
        expect(nearest.find(promptIds)).toEqual(expected)
        const call = { promptIds, ids: Int32Array.of(3) }
        nearest.add(call)
        added.push(call)
      }
    }),
    { numRuns: 300 },
  )
})
