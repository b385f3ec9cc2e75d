import { afterAll, beforeAll, expect, test } from 'vitest'
import { embeddedModelFolder } from '../model-package.ts'
import { loadBackend } from './backend.ts'
import type { Backend } from './backend.ts'
import { emptyKeyValues, joinKeyValues, sliceKeyValues } from './key-values.ts'

const folder = embeddedModelFolder()
const ids = Int32Array.from({ length: 40 }, (_, i) => 100 + ((i * 37) % 5000))
const withoutNative = () => Promise.reject(new Error('no such package'))

let best: Backend
let wasm: Backend
beforeAll(async () => {
  best = await loadBackend('auto', folder)
  wasm = await loadBackend('auto', folder, withoutNative)
})
afterAll(async () => {
  await best.model.release()
  await wasm.model.release()
})

test('auto selects WebAssembly if the native package does not load', () => {
  expect(wasm.kind).toBe('wasm')
})

test('native names the package to install if it does not load', async () => {
  await expect(loadBackend('native', folder, withoutNative)).rejects.toThrow(
    /onnxruntime-node.*install it, or choose wasm.*no such package/,
  )
})

test('every backend names a missing model', async () => {
  await expect(loadBackend('auto', `${folder}/nowhere`)).rejects.toThrow('nowhere')
})

test('forward() returns a row of logits and the key-values of every token', async () => {
  for (const { model } of [best, wasm]) {
    const { logits, state } = await model.forward(ids, emptyKeyValues(model.shape))
    expect(logits).toHaveLength(ids.length * model.shape.vocabularySize)
    expect(state.length).toBe(ids.length)
    expect(logits.every(Number.isFinite)).toBe(true)
  }
})

test('forward() continues identically from key-values that were sliced and joined', async () => {
  for (const { model } of [best, wasm]) {
    const { keyValueHeads } = model.shape
    const first = await model.forward(ids.subarray(0, 16), emptyKeyValues(model.shape))
    const second = await model.forward(ids.subarray(16, 32), first.state)
    const rejoined = joinKeyValues([first.state, sliceKeyValues(second.state, 16, keyValueHeads)], keyValueHeads)
    expect(rejoined).toEqual(second.state)
    const [plain, again] = [second.state, rejoined].map((state) => model.forward(ids.subarray(32), state))
    expect((await again!).logits).toEqual((await plain!).logits)
  }
})

test('the logits of both backends are correlated', async () => {
  const [a, b] = await Promise.all(
    [best, wasm].map(async ({ model }) => (await model.forward(ids, emptyKeyValues(model.shape))).logits),
  )
  expect(correlation(a!, b!)).toBeGreaterThan(0.95)
})

function correlation(a: Float32Array, b: Float32Array): number {
  const mean = (values: Float32Array) => values.reduce((sum, value) => sum + value, 0) / values.length
  const [meanA, meanB] = [mean(a), mean(b)]
  let [both, varianceA, varianceB] = [0, 0, 0]
  for (let i = 0; i < a.length; i++) {
    both += (a[i]! - meanA) * (b[i]! - meanB)
    varianceA += (a[i]! - meanA) ** 2
    varianceB += (b[i]! - meanB) ** 2
  }
  return both / Math.sqrt(varianceA * varianceB)
}
