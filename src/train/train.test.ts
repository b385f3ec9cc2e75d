import { expect, test } from 'vitest'
import { DEMO_OPTIONS } from './demo-options.ts'
import { createLowRank, forward, type LowRank } from './low-rank.ts'
import { train, type StepReport } from './train.ts'
import type { TrainSession } from './train-session.ts'

const SHAPE = { hiddenSize: 4, vocabularySize: 6 }
const GOOD = 2

/** The frozen model: the same prediction before every token. */
const prediction = { logits: Float32Array.of(0, 0.1, 0.2, 0.3, 0.4, 0.5), hidden: Float32Array.of(1, 0.5, -1, 2) }

/** An engine and an environment that rewards one token. Each session samples every token once; its version is that of its end. */
function setUp(steps: number, maxLag: number) {
  const events: string[] = []
  const reports: StepReport[] = []
  let loaded: { version: number; weights: LowRank } | undefined
  const sampleNow = (group: string): TrainSession[] =>
    Array.from({ length: SHAPE.vocabularySize }, (_, id) => {
      const logprobs = Float32Array.of(forward(loaded!.weights, prediction, id).logprob)
      const versions = Int32Array.of(loaded!.version)
      const call = { promptIds: Int32Array.of(1), ids: Int32Array.of(id), logprobs, versions }
      return { id: `${group}-${id}`, group, reward: id === GOOD ? 1 : 0, calls: [call] }
    })
  const run = train(
    createLowRank(1, SHAPE, () => 0.3),
    { ...DEMO_OPTIONS, steps, maxLag },
    {
      async sample(step, version) {
        events.push(`sample ${step} of version ${version}`)
        return sampleNow(`step-${step}`)
      },
      read: async (_, { length }) => ({
        logits: Float32Array.from({ length: length * 6 }, (_value, i) => prediction.logits[i % 6]!),
        hidden: Float32Array.from({ length: length * 4 }, (_value, i) => prediction.hidden[i % 4]!),
      }),
      async load(version, weights) {
        events.push(`load ${version}`)
        loaded = { version, weights }
      },
      now: () => 0,
      onStep: (report) => void reports.push(report),
    },
  )
  return { events, reports, run }
}

test('synchronous training samples each step with the weights of the last update', async () => {
  const { events, reports, run } = setUp(3, 0)
  const weights = await run
  expect(events).toEqual([
    'load 1',
    'sample 1 of version 1',
    'load 2',
    'sample 2 of version 2',
    'load 3',
    'sample 3 of version 3',
    'load 4',
  ])
  expect(reports.map(({ maxLag }) => maxLag)).toEqual([0, 0, 0])
  expect(forward(weights, prediction, GOOD).logprob).toBeGreaterThan(
    forward(
      createLowRank(1, SHAPE, () => 0.3),
      prediction,
      GOOD,
    ).logprob,
  )
})

test('asynchronous training samples further steps before an update, at most maxLag versions behind', async () => {
  const { events, reports, run } = setUp(4, 2)
  await run
  expect(events.slice(0, 5)).toEqual([
    'load 1',
    'sample 1 of version 1',
    'sample 2 of version 1',
    'sample 3 of version 1',
    'load 2',
  ])
  expect(reports.map(({ maxLag }) => maxLag)).toEqual([0, 1, 2, 2])
  expect(reports.every(({ maxLogprobError }) => maxLogprobError < 1e-6)).toBe(true)
})

test('the same input gives the same weights', async () => {
  const [a, b] = [setUp(3, 0), setUp(3, 0)]
  expect(await a.run).toEqual(await b.run)
  expect(a.reports).toEqual(b.reports)
})
