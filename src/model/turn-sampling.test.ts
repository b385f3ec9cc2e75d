import { expect, test } from 'vitest'
import { toCallSampling, type DefaultSampling, type SentSampling } from './turn-sampling.ts'

const NONE = { temperature: 1, topP: 1, topK: -1, minP: 0 }

function inForce(sent: SentSampling, defaults: DefaultSampling = NONE, assumed: (keyof DefaultSampling)[] = []) {
  return toCallSampling({ sent, defaults, assumed })
}

test('toCallSampling() prefers sent parameters to defaults of the engine', () => {
  expect(inForce({ temperature: 0.5, seed: 7, n: 2, stop: ['x'] })).toEqual({
    ...NONE,
    temperature: 0.5,
    seed: 7,
    assumed: [],
    isCut: false,
  })
})

test('toCallSampling() names assumed defaults unless they were sent', () => {
  expect(inForce({ topP: 1 }, NONE, ['temperature', 'topP']).assumed).toEqual(['temperature'])
})

test.each([
  [{ topP: 0.9 }, {}],
  [{ topK: 40 }, {}],
  [{ minP: 0.05 }, {}],
  [{ temperature: 0 }, {}],
  [{}, { topP: 0.95 }],
  [{}, { topK: 20 }],
])('toCallSampling() marks a call with a truncated distribution: sent %j, defaults %j', (sent, defaults) => {
  expect(inForce(sent, defaults).isCut).toBe(true)
})

test.each([
  [{}, {}],
  [{ topP: 1, topK: 0, minP: 0, temperature: 0.5 }, {}],
  [{ topK: -1 }, { topK: 20 }],
])('toCallSampling() does not mark a complete distribution: sent %j, defaults %j', (sent, defaults) => {
  expect(inForce(sent, defaults).isCut).toBe(false)
})

test('toCallSampling() names parameters that the server set to unknown values, unless they were sent', () => {
  const engine = { defaults: { minP: 0 }, assumed: [], hidden: ['temperature', 'topK'] } as const
  expect(toCallSampling({ ...engine, sent: {} })).toMatchObject({ hidden: ['temperature', 'topK'], isCut: true })
  expect(toCallSampling({ ...engine, sent: { topK: 0 } })).toMatchObject({ hidden: ['temperature'], isCut: false })
  expect(toCallSampling({ ...engine, sent: { topK: 0, temperature: 1 } })).not.toHaveProperty('hidden')
})
