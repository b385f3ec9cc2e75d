import { expect, test } from 'vitest'
import { DEMO_OPTIONS } from './demo-options.ts'
import { summarise, toMarkdown, toSvg, type TrainReport } from './report.ts'

function reportOf(rewards: readonly number[]): TrainReport {
  const steps = rewards.map((meanReward, i) => ({
    step: i + 1,
    meanReward,
    sessions: 4,
    trainedTokens: 100,
    maxLogprobError: 1e-7,
    meanLag: 0.5,
    maxLag: 1,
    seconds: 2,
    objective: 0,
    clipped: 0.1,
    meanRatio: 1,
    maxRatio: 1.2,
    divergence: 0.01,
  }))
  const options = { ...DEMO_OPTIONS, steps: steps.length, maxLag: 1, rank: 8, tasksPerStep: 1, samples: 4 }
  return { command: 'polar train-demo --seed 3', seed: 3, options, backend: 'native', steps, seconds: 60 }
}

test('a run has learned if its last five steps exceed the first five by 0.15', () => {
  const flat = Array<number>(5).fill(0.2)
  const summary = summarise(reportOf([...flat, 0.9, ...Array<number>(5).fill(0.45)]))
  expect(summary.first).toBeCloseTo(0.2)
  expect(summary.last).toBeCloseTo(0.45)
  expect(summary.hasLearned).toBe(true)
  expect(summarise(reportOf([...flat, ...Array<number>(5).fill(0.3)])).hasLearned).toBe(false)
  // The first and the last steps of a short run do not overlap.
  expect(summarise(reportOf([0.1, 0.5, 0.9]))).toEqual({ first: 0.1, last: 0.9, hasLearned: true })
})

test('the report has seed, curve, staleness and configuration', () => {
  const page = toMarkdown(reportOf([0.1, 0.5, 0.9]), 'curve.svg')
  expect(page).toContain('![Mean reward of each step](curve.svg)')
  expect(page).toContain('| seed | 3 |')
  expect(page).toContain('| staleness: mean, largest | 0.50, 1 versions |')
  expect(page).toContain('| 2 | 0.500 | 100 | 0.50 | 1 |')
  expect(page).toContain('"learningRate"')
})

test('the picture has a point for each step, and no markup from the command', () => {
  const svg = toSvg({ ...reportOf([0, 0.5, 1]), command: 'a <b> & c' })
  expect(svg.match(/<circle/g)).toHaveLength(3)
  expect(svg).toContain('a &lt;b> &amp; c')
})
