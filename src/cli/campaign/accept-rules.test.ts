import { expect, test } from 'vitest'
import { AcceptRules, whyEndingRejected, whyTrajectoryRejected } from './accept-rules.ts'

const rules = AcceptRules.parse({ minReward: 0.5, endings: ['completed', 'truncated'], minToolCalls: 1, maxTurns: 10 })

test.each([
  [{ ending: 'completed', reward: 0.5 }, undefined],
  [{ ending: 'truncated', reward: 1 }, undefined],
  [{ ending: 'completed', reward: 0.49 }, 'reward'],
  [{ ending: 'completed', reward: undefined }, 'no-reward'],
  [{ ending: 'timeout', reward: 1 }, 'ending'],
  [{ ending: undefined, reward: 1 }, 'ending'],
] as const)('whyEndingRejected(%o) is %s', (facts, reason) => {
  expect(whyEndingRejected(facts, rules)).toBe(reason)
})

test('whyEndingRejected() accepts a session without a reward if no reward is required', () => {
  expect(whyEndingRejected({ ending: 'completed', reward: undefined }, { ...rules, minReward: null })).toBeUndefined()
})

const good = { isComplete: true, turns: 10, toolCalls: 1, trainedTokens: 5 }

test.each([
  [good, undefined],
  [{ ...good, isComplete: false }, 'incomplete'],
  [{ ...good, trainedTokens: 0 }, 'nothing-trained'],
  [{ ...good, turns: 11 }, 'turns'],
  [{ ...good, toolCalls: 0 }, 'tool-calls'],
])('whyTrajectoryRejected(%o) is %s', (facts, reason) => {
  expect(whyTrajectoryRejected(facts, rules)).toBe(reason)
})
