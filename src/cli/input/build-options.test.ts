import { expect, test } from 'vitest'
import { Label } from '../../model/sample.ts'
import { Steering } from '../../model/turn.ts'
import { buildFlags, toBuildOptions, type BuildFlags } from './build-options.ts'

const defaults: BuildFlags = {
  builder: buildFlags.builder.default,
  splice: false,
  'builder-module': undefined,
  labels: buildFlags.labels.default,
  grades: buildFlags.grades.default,
  'finish-reasons': undefined,
  'max-tokens': undefined,
  'allow-steered': undefined,
  tokenizer: undefined,
  'exclude-parser-failures': false,
  weights: buildFlags.weights.default,
}

test('toBuildOptions() without flags trains exact calls of the agent and its sub-agents', async () => {
  const { builder, filter, weighting } = await toBuildOptions('build', defaults)
  expect(builder).toMatchObject({ name: 'prefix_merging', mayMismatch: false })
  expect(filter).toMatchObject({ labels: ['main', 'subagent'], grades: ['exact'], parserFailures: 'keep' })
  expect([filter.finishReasons, filter.maxTokens, weighting]).toEqual([undefined, undefined, 'tokens'])
})

test('toBuildOptions() parses every flag, and finish reasons with _ or -', async () => {
  const { builder, filter, weighting } = await toBuildOptions('build', {
    ...defaults,
    splice: true,
    labels: 'main, retry',
    grades: 'exact,inferred',
    'finish-reasons': 'stop,tool_calls',
    'max-tokens': '4096',
    'exclude-parser-failures': true,
    'allow-steered': 'prefill, tool-choice',
    weights: 'equal',
  })
  expect(builder.mayMismatch).toBe(true)
  expect(filter).toMatchObject({
    labels: ['main', 'retry'],
    grades: ['exact', 'inferred'],
    finishReasons: ['stop', 'tool-calls'],
    maxTokens: 4096,
    parserFailures: 'exclude',
    allowSteered: ['prefill', 'tool-choice'],
  })
  expect(weighting).toBe('equal')
})

test('toBuildOptions() accepts "all" for labels and steering', async () => {
  const { filter } = await toBuildOptions('build', { ...defaults, labels: 'all', 'allow-steered': 'all' })
  expect(filter).toMatchObject({ labels: Label.options, allowSteered: Steering.options })
})

test.each([
  [{ labels: 'main,wrong' }, '--labels takes main, subagent'],
  [{ grades: '' }, '--grades takes exact'],
  [{ 'allow-steered': 'bias' }, '--allow-steered takes response-format'],
  [{ 'finish-reasons': 'done' }, '--finish-reasons takes stop'],
  [{ 'max-tokens': 'many' }, '--max-tokens must be a whole number'],
  [{ builder: 'per_request', splice: true }, '--splice is for --builder prefix_merging'],
  [{ 'builder-module': 'x.ts', splice: true }, '--splice is for --builder prefix_merging'],
])('toBuildOptions() rejects %j', async (flags, message) => {
  const problem = { code: 'config.invalid', message: expect.stringContaining(message) }
  await expect(toBuildOptions('build', { ...defaults, ...flags })).rejects.toMatchObject(problem)
})
