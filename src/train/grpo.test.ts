import { describe, expect, test } from 'vitest'
import { Adam } from './adam.ts'
import { grpoObjective, type TrainToken } from './grpo.ts'
import { createLowRank, forward, type LowRank } from './low-rank.ts'

const SHAPE = { hiddenSize: 5, vocabularySize: 7 }
const CLIP = 0.2

/** A linear congruential generator: enough for test data. */
function createRandom(seed: number): () => number {
  let state = seed
  return () => (state = (state * 1_103_515_245 + 12_345) % 2 ** 31) / 2 ** 31
}

const random = createRandom(3)
const vector = (length: number) => Float32Array.from({ length }, () => 2 * random() - 1)

function makeWeights(): LowRank {
  const { down } = createLowRank(2, SHAPE, random)
  return { rank: 2, down, up: vector(2 * SHAPE.vocabularySize) }
}

/** A token that other weights sampled, so that its ratio is not 1. */
function makeToken(advantage: number, shift: number, weights: LowRank): TrainToken {
  const prediction = { logits: vector(SHAPE.vocabularySize), hidden: vector(SHAPE.hiddenSize) }
  const id = Math.floor(random() * SHAPE.vocabularySize)
  return { ...prediction, id, advantage, logprob: forward(weights, prediction, id).logprob - shift }
}

describe('grpoObjective()', () => {
  test('has the gradient of its objective in every weight, by finite differences', () => {
    const weights = makeWeights()
    // Ratios of 0.7 to 1.35: within the clip range, clipped, and outside of the range on the side that is not clipped.
    const tokens = [0.05, -0.1, 0.3, -0.35].flatMap((shift) => [
      makeToken(1.5, shift, weights),
      makeToken(-0.5, shift, weights),
    ])
    const { gradient, stats } = grpoObjective(weights, tokens, CLIP)
    expect(stats.clipped).toBe(2 / 8)
    const objectiveOf = (changed: LowRank) => grpoObjective(changed, tokens, CLIP).stats.objective
    const step = 1e-3
    for (const part of ['down', 'up'] as const) {
      for (let i = 0; i < weights[part].length; i++) {
        const moved = (by: number) => ({ ...weights, [part]: weights[part].with(i, weights[part][i]! + by) })
        const difference = (objectiveOf(moved(step)) - objectiveOf(moved(-step))) / (2 * step)
        expect(gradient[part][i]).toBeCloseTo(difference, 3)
      }
    }
  })

  test('with the weights that sampled the tokens, all ratios are 1 and the objective is the mean advantage', () => {
    const weights = makeWeights()
    const { stats } = grpoObjective(weights, [makeToken(1, 0, weights), makeToken(-3, 0, weights)], CLIP)
    expect(stats).toMatchObject({ clipped: 0, maxRatio: 1, meanRatio: 1, divergence: 0, objective: -1 })
  })

  test('a batch without tokens has no gradient', () => {
    const { gradient, stats } = grpoObjective(makeWeights(), [], CLIP)
    expect(gradient.up.every((value) => value === 0)).toBe(true)
    expect(stats.objective).toBe(0)
  })
})

test('initial weights leave the model unchanged', () => {
  const prediction = { logits: vector(SHAPE.vocabularySize), hidden: vector(SHAPE.hiddenSize) }
  const { probabilities, logprob } = forward(createLowRank(2, SHAPE, random), prediction, 4)
  const sum = prediction.logits.reduce((total, value) => total + Math.exp(value), 0)
  for (const [id, value] of prediction.logits.entries())
    expect(probabilities[id]).toBeCloseTo(Math.exp(value) / sum, 12)
  expect(logprob).toBeCloseTo(prediction.logits[4]! - Math.log(sum), 12)
})

test('steps of Adam raise the probability of a rewarded token and lower that of a penalised one', () => {
  let weights = createLowRank(2, SHAPE, random)
  const tokens = [makeToken(1, 0, weights), makeToken(-1, 0, weights)]
  const before = tokens.map((token) => forward(weights, token, token.id).logprob)
  const adam = new Adam({ learningRate: 0.01, beta1: 0.9, beta2: 0.99, epsilon: 1e-3 })
  for (let step = 0; step < 5; step++) weights = adam.step(weights, grpoObjective(weights, tokens, CLIP).gradient)
  const after = tokens.map((token) => forward(weights, token, token.id).logprob)
  expect(after[0]).toBeGreaterThan(before[0]!)
  expect(after[1]).toBeLessThan(before[1]!)
})
