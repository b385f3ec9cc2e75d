import fc from 'fast-check'
import { expect, test } from 'vitest'
import { rangeProblem, rewardRange } from './reward-range.ts'

test('rangeProblem() accepts exactly the finite rewards inside the range', () => {
  fc.assert(
    fc.property(fc.double(), fc.double({ noNaN: true }), fc.double({ noNaN: true }), (reward, a, b) => {
      const [lowest, highest] = a < b ? [a, b] : [b, a]
      const isInside = reward >= lowest && reward <= highest
      expect(rangeProblem({ outcome_reward: reward }, [lowest, highest]) === undefined).toBe(isInside)
      expect(rangeProblem({ trace_rewards: [null, reward] }, [lowest, highest]) === undefined).toBe(isInside)
    }),
  )
})

test('rangeProblem() names the reward and the range', () => {
  expect(rangeProblem({ outcome_reward: 0.5, trace_rewards: [1, 7] }, [0, 1])).toBe(
    '7 is outside of the declared range, 0 to 1',
  )
  expect(rangeProblem({ outcome_reward: null, trace_rewards: null }, [0, 1])).toBeUndefined()
})

test('a range is 0 to 1 unless a task declares another', () => {
  expect(rewardRange.parse(undefined)).toEqual([0, 1])
  expect(rewardRange.parse([-1, 5])).toEqual([-1, 5])
  for (const wrong of [[1, 0], [1, 1], [0], [0, Number.NaN], [0, Infinity]]) {
    expect(rewardRange.safeParse(wrong).success, String(wrong)).toBe(false)
  }
})
