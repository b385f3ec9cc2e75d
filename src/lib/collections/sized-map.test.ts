import fc from 'fast-check'
import { expect, test } from 'vitest'
import { SizedMap } from './sized-map.ts'

test('SizedMap evicts demoted keys first, then the least recently used', () => {
  const map = new SizedMap<number>(30)
  map.set('a', 1, 10)
  map.set('b', 2, 10)
  map.set('c', 3, 10)
  map.demote('c')
  map.get('a')
  map.set('d', 4, 10)
  expect(['a', 'b', 'c', 'd'].map((key) => map.get(key))).toEqual([1, 2, undefined, 4])
  map.get('a')
  map.set('e', 5, 20)
  expect(['a', 'b', 'd', 'e'].map((key) => map.get(key))).toEqual([1, undefined, undefined, 5])
})

test('SizedMap never exceeds its limit, and keeps everything that fits', () => {
  const step = fc.record({
    key: fc.constantFrom('a', 'b', 'c', 'd', 'e'),
    action: fc.constantFrom('set', 'get', 'demote'),
    bytes: fc.integer({ min: 0, max: 20 }),
  })
  fc.assert(
    fc.property(fc.array(step), fc.integer({ min: 0, max: 100 }), (steps, limit) => {
      const map = new SizedMap<number>(limit)
      const sizes = new Map<string, number>()
      for (const { key, action, bytes } of steps) {
        if (action === 'get') map.get(key)
        else if (action === 'demote') map.demote(key)
        else {
          map.set(key, bytes, bytes)
          sizes.set(key, bytes)
        }
        expect(map.bytes).toBeLessThanOrEqual(limit)
      }
      const total = [...sizes.values()].reduce((sum, bytes) => sum + bytes, 0)
      const held = [...sizes].filter(([key, bytes]) => map.get(key) === bytes)
      if (limit === 100) expect(held).toHaveLength(sizes.size)
      expect(held.reduce((sum, [, bytes]) => sum + bytes, 0)).toBe(map.bytes)
      expect(map.bytes).toBeLessThanOrEqual(total)
    }),
  )
})
