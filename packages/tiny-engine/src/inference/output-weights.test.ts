import { expect, test } from 'vitest'
import { applyOutputWeights, findWeightsProblem } from './output-weights.ts'

const logits = Float32Array.of(1, 2, 3)
const hidden = Float32Array.of(2, 5)
/** Rows of `down` have the products 2 and 5. */
const lowRank = { rank: 2, down: Float32Array.of(1, 0, 0, 1), up: Float32Array.of(1, 0, 10, 0, 1, 100) }

test('applyOutputWeights() adds the bias and up · (down · hidden), and leaves its input unchanged', () => {
  const bias = Float32Array.of(0.5, 0.5, 0.5)
  expect([...applyOutputWeights(logits, hidden, { lowRank })]).toEqual([3, 7, 523])
  expect([...applyOutputWeights(logits, hidden, { bias, lowRank })]).toEqual([3.5, 7.5, 523.5])
  expect([...logits]).toEqual([1, 2, 3])
  expect(applyOutputWeights(logits, hidden, {})).toBe(logits)
})

test('findWeightsProblem() finds weights of another size and values that are not finite', () => {
  const shape = { vocabularySize: 3, hiddenSize: 2 }
  expect(findWeightsProblem({ lowRank }, shape)).toBeUndefined()
  expect(findWeightsProblem({ lowRank: { ...lowRank, rank: 1 } }, shape)).toMatch('rank 1 is 2 and 3')
  expect(findWeightsProblem({ lowRank: { ...lowRank, up: lowRank.up.with(0, Number.NaN) } }, shape)).toMatch('finite')
  expect(findWeightsProblem({ bias: new Float32Array(2) }, shape)).toMatch('3 finite numbers')
})
