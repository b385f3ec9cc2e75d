import fc from 'fast-check'
import { expect, test } from 'vitest'
import { createSteadyClock } from './steady-clock.ts'

test('createSteadyClock() starts at the wall clock, follows monotonic time, and ignores changes of the wall clock', () => {
  const steps = fc.array(fc.record({ passed: fc.nat(100_000), set: fc.integer({ min: -1e10, max: 1e10 }) }))
  fc.assert(
    fc.property(steps, (list) => {
      let [wall, passed] = [1.7e12, 0]
      const now = createSteadyClock(
        () => wall,
        () => passed,
      )
      expect(now()).toBe(1.7e12)
      for (const step of list) {
        const before = now()
        wall += step.passed + step.set
        passed += step.passed
        expect(now() - before).toBe(step.passed)
      }
    }),
  )
})
