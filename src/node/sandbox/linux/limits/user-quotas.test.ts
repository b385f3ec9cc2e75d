import fc from 'fast-check'
import { expect, test } from 'vitest'
import { divideLimits, readUserLimits, toSysctls } from './user-quotas.ts'

test('divideLimits() returns a share of three quarters for each sandbox', () => {
  const limits = {
    inotifyInstances: 128,
    inotifyWatches: 65_536,
    processes: 96_000,
    pendingSignals: 96_000,
    messageQueueBytes: 8_192_000,
  }
  expect(divideLimits(limits, 12)).toEqual({
    inotifyInstances: 8,
    inotifyWatches: 4096,
    processes: 6000,
    pendingSignals: 6000,
    messageQueueBytes: 512_000,
  })
})

test("one sandbox never gets more than its user's limit, and leaves a part of a limit above the minimum", () => {
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 2 ** 31 }), fc.integer({ min: 1, max: 1000 }), (limit, sandboxes) => {
      const { inotifyInstances } = divideLimits({ inotifyInstances: limit }, sandboxes)
      expect(inotifyInstances).toBeGreaterThan(0)
      expect(inotifyInstances).toBeLessThanOrEqual(limit)
      if (limit > 2) expect(inotifyInstances).toBeLessThan(limit)
    }),
  )
})

test('an infinite limit stays undefined', () => {
  expect(Object.values(divideLimits({}, 4)).every((value) => value === undefined)).toBe(true)
  expect(toSysctls({})).toEqual([])
})

test('readUserLimits() returns the limits of this process', () => {
  expect(readUserLimits().inotifyInstances).toBeGreaterThan(0)
  expect(toSysctls({ inotifyInstances: 3, inotifyWatches: 5 })).toEqual([
    'max_inotify_instances=3',
    'max_inotify_watches=5',
  ])
})
