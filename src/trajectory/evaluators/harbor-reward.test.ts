import { expect, test } from 'vitest'
import { resolveTemplates } from './harbor-env.ts'
import { decideOutcome, parseRewardFile } from './harbor-reward.ts'

test.each([
  ['reward.txt', '1', { reward: 1 }],
  ['reward.txt', ' 0.25\n', { reward: 0.25 }],
  ['reward.txt', '-3e-2', { reward: -0.03 }],
  ['reward.json', '0.5', { reward: 0.5 }],
  ['reward.json', '{"reward": 1, "speed": 0.3}', { reward: 1, speed: 0.3 }],
  ['reward.json', '{"passed": true, "clean": false}', { passed: 1, clean: 0 }],
] as const)('parseRewardFile() parses %s with %j', (file, text, rewards) => {
  expect(parseRewardFile(file, text)).toEqual({ rewards })
})

test.each([
  ['reward.txt', '', 'is empty'],
  ['reward.txt', 'nan', 'holds no number: "nan"'],
  ['reward.txt', 'inf', 'holds no number: "inf"'],
  ['reward.txt', '1e999', 'says "null" for "reward", which is no finite number'],
  ['reward.txt', '0x10', 'holds no number: "0x10"'],
  ['reward.txt', '1 2', 'holds no number: "1 2"'],
  ['reward.json', ' \n', 'is empty'],
  ['reward.json', '{', 'is no JSON: "{"'],
  ['reward.json', 'NaN', 'is no JSON: "NaN"'],
  ['reward.json', '{}', 'names no reward'],
  ['reward.json', '[1]', 'holds neither a number nor numbers by name: "[1]"'],
  ['reward.json', 'null', 'holds neither a number nor numbers by name: "null"'],
  ['reward.json', '{"a": "1"}', String.raw`says "\"1\"" for "a", which is no finite number`],
  ['reward.json', '{"a": {"b": 1}}', String.raw`says "{\"b\":1}" for "a", which is no finite number`],
] as const)('parseRewardFile() reports why %s with %j is not a reward', (file, text, problem) => {
  expect(parseRewardFile(file, text)).toEqual({ problem })
})

test('decideOutcome() returns the value named reward, the only value, or the configured choice', () => {
  expect(decideOutcome({ reward: 0.5, speed: 1 }, 'auto')).toBe(0.5)
  expect(decideOutcome({ speed: 0.75 }, 'auto')).toBe(0.75)
  expect(decideOutcome({ a: 1, b: 0 }, 'mean')).toBe(0.5)
  expect(decideOutcome({ a: 1, b: 0 }, { key: 'b' })).toBe(0)
})

test('decideOutcome() throws if the outcome is ambiguous', () => {
  expect(() => decideOutcome({ a: 1, b: 0 }, 'auto')).toThrow('rewards for "a", "b", none of which is "reward"')
  expect(() => decideOutcome({ reward: 1 }, { key: 'toString' })).toThrow('none of which is "toString"')
})

test('resolveTemplates() replaces variables by their values, and lists all missing variables', () => {
  const lookUp = (name: string) => (name === 'KEY' ? 'abc' : undefined)
  expect(resolveTemplates({ A: '${KEY}', B: '${NONE:-b}', C: 'plain $KEY', D: '${NONE:-}' }, lookUp)).toEqual({
    A: 'abc',
    B: 'b',
    C: 'plain $KEY',
    D: '',
  })
  expect(() => resolveTemplates({ A: '${ONE}', B: '${TWO}' }, lookUp)).toThrow('The tests need the variables ONE, TWO')
})
