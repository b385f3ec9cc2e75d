import { describe, expect, test } from 'vitest'
import { advantagesOf, type AdvantageMethod, type SessionScore } from './score-session.ts'

function advantages(method: AdvantageMethod, ...rewards: number[]): number[] {
  const scores = rewards.map((reward, i): SessionScore => {
    return { session_id: `s${i}`, outcome_reward: reward, group_id: 'task', metadata: {} }
  })
  return [...advantagesOf(scores, method).values()]
}

describe('advantagesOf()', () => {
  // Deviations of 1, 0, 0, 0: 0.5 over N - 1 = 3, and the square root of 3/16 over N = 4.
  test.each<[AdvantageMethod, number, number]>([
    ['grpo', 0.75, -0.25],
    ['grpo-trl', 0.75 / (0.5 + 1e-4), -0.25 / (0.5 + 1e-4)],
    ['grpo-verl', 0.75 / (0.5 + 1e-6), -0.25 / (0.5 + 1e-6)],
    ['grpo-std', 0.75 / (Math.sqrt(3) / 4 + 1e-6), -0.25 / (Math.sqrt(3) / 4 + 1e-6)],
    ['rloo', 1, -1 / 3],
  ])('%s of rewards 1, 0, 0, 0', (method, best, other) => {
    const found = advantages(method, 1, 0, 0, 0)
    for (const [i, value] of [best, other, other, other].entries()) expect(found[i]).toBeCloseTo(value, 12)
  })

  test.each<AdvantageMethod>(['grpo', 'grpo-trl', 'grpo-verl', 'grpo-std', 'rloo'])(
    '%s of equal rewards is zero',
    (method) => {
      expect(advantages(method, 1, 1, 1)).toEqual([0, 0, 0])
    },
  )

  test('a group of one session has the advantages of each trainer', () => {
    expect(advantages('grpo-trl', 1)).toEqual([0])
    expect(advantages('grpo-verl', 1)).toEqual([1 / (1 + 1e-6)])
    expect(advantages('rloo', 1)).toEqual([])
  })
})
