import { totalmem } from 'node:os'
import fc from 'fast-check'
import { expect, test } from 'vitest'
import { machineMemory, defaultMemoryMb } from './default-memory.ts'

const GB = 1024 ** 3

test.each([
  [24 * GB, { run: 4, postrun: 4 }, 2304],
  [2048 * GB, { run: 64, postrun: 32 }, 16_384],
  // The minimum for harnesses, although four such sandboxes exceed the machine's memory.
  [4 * GB, { run: 4, postrun: 4 }, 1024],
  [GB, { run: 1, postrun: 1 }, 768],
])('a sandbox of a machine with %d bytes and widths %j gets %d MB', (bytes, widths, expected) => {
  expect(defaultMemoryMb(bytes, widths)).toBe(expected)
})

test('defaultMemoryMb() is a positive integer and at most three quarters of the machine', () => {
  fc.assert(
    fc.property(
      fc.integer({ min: 64 * 1024 ** 2, max: 2 ** 45 }),
      fc.record({ run: fc.integer({ min: 1, max: 1000 }), postrun: fc.integer({ min: 1, max: 1000 }) }),
      (bytes, widths) => {
        const megabytes = defaultMemoryMb(bytes, widths)
        expect(Number.isInteger(megabytes)).toBe(true)
        expect(megabytes).toBeGreaterThan(0)
        expect(megabytes * 1024 ** 2).toBeLessThanOrEqual(bytes * 0.75)
      },
    ),
  )
})

test('machineMemory() is at most the memory of the machine', () => {
  expect(machineMemory()).toBeGreaterThan(0)
  expect(machineMemory()).toBeLessThanOrEqual(totalmem())
})
