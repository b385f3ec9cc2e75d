import { expect, test } from 'vitest'
import { parseReward } from './parse-reward.ts'

test.each([
  ['1', 1],
  [' 0.5\n', 0.5],
  ['-.25', -0.25],
  ['1e-3', 0.001],
  ['{"reward": 2}', 2],
])('parseReward() parses %j', (text, reward) => {
  expect(parseReward(text, 'It')).toMatchObject({ result: { outcome_reward: reward, metadata: {} } })
})

test('parseReward() keeps components, rewards of traces and metadata', () => {
  const values = { reward: 0.5, components: { a: 1 }, trace_rewards: [null, 1], metadata: { b: 2 } }
  const { reward, ...rest } = values
  expect(parseReward(JSON.stringify(values), 'It')).toEqual({ result: { outcome_reward: reward, ...rest } })
})

test.each([
  '',
  'PASSED',
  'NaN',
  '-Infinity',
  '1e400',
  '0x10',
  '1 1',
  'null',
  'true',
  '"1"',
  '[1]',
  '{}',
  '{"reward": null}',
  '{"reward": "1"}',
  '{"reward": 1e400}',
  '{"reward": 1, "components": {"a": true}}',
  '{"reward": 1, "score": 1}',
])('parseReward() takes %j for no reward', (text) => {
  expect(parseReward(text, 'The last line')).toEqual({
    problem: expect.stringMatching(/^The last line is not a reward/),
  })
})
