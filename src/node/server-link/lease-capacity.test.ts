import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { countCapacity } from './lease-capacity.ts'

const anyWidth = fc.integer({ min: 1, max: 64 })
const anyWidths = fc.record({ init: anyWidth, ready: fc.integer({ min: 0, max: 64 }), run: anyWidth })

describe('countCapacity()', () => {
  test('fills the stages init, ready and run, and no more', () => {
    fc.assert(
      fc.property(anyWidths, fc.nat(300), (widths, busy) => {
        const { slots } = countCapacity(widths, busy)
        const total = widths.init + widths.ready + widths.run
        expect(slots).toBe(Math.max(0, total - busy))
      }),
    )
  })

  test('counts as ahead only the slots that exceed the free run slots', () => {
    fc.assert(
      fc.property(anyWidths, fc.nat(300), fc.nat(300), (widths, busy, most) => {
        const { slots, ahead } = countCapacity(widths, busy, most)
        expect(ahead).toBeGreaterThanOrEqual(0)
        expect(slots - ahead).toBe(Math.min(slots, Math.max(0, widths.run - busy)))
        expect(slots + busy).toBeLessThanOrEqual(Math.max(most, busy))
      }),
    )
  })
})
