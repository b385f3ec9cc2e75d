import fc from 'fast-check'
import { expect, test } from 'vitest'
import { WeightHistory } from './weight-history.ts'

function historyOf(...versions: string[]): WeightHistory {
  const history = new WeightHistory()
  for (const version of versions) history.set(version)
  return history
}

test('between() returns one version when the weights did not change during the call', () => {
  const history = historyOf('step-1', 'step-2')
  expect(history.between(2, 2)).toEqual({ version: 'step-2' })
  expect(history.between(1, 1)).toEqual({ version: 'step-1' })
})

test('between() returns the range of versions when the weights changed between sending and arrival', () => {
  const history = historyOf('step-1', 'step-2', 'step-3')
  expect(history.between(1, 2)).toEqual({ version: 'step-1', newest: 'step-2' })
  expect(history.between(1, 3)).toEqual({ version: 'step-1', newest: 'step-3' })
})

test('between() is undefined for a call that was sent before the first version was set', () => {
  expect(historyOf().between(0, 0)).toBeUndefined()
  expect(historyOf('step-1').between(0, 1)).toBeUndefined()
})

test('between() takes the version that the engine reports as the newest possible one', () => {
  const history = historyOf('step-1', 'step-2', 'step-3')
  expect(history.between(1, 3, 'step-1')).toEqual({ version: 'step-1' })
  expect(history.between(1, 3, 'step-2')).toEqual({ version: 'step-1', newest: 'step-2' })
  // An engine without a version reports its own default.
  expect(history.between(1, 3, 'default')).toEqual({ version: 'step-1', newest: 'step-3' })
})

test('set() does not count the current version as a change', () => {
  const history = historyOf('step-1', 'step-1')
  expect(history.position).toBe(1)
  expect(history.version).toBe('step-1')
})

test('between() includes the version that sampled, for every order of sending, sampling, reading and changes', () => {
  const step = fc.constantFrom('change', 'sample', 'read')
  fc.assert(
    fc.property(fc.nat({ max: 4 }), fc.array(step, { maxLength: 30 }), (before, steps) => {
      const history = historyOf('v0', ...Array.from({ length: before }, (_, i) => `v${i + 1}`))
      const sent = history.position
      const onTheWay: number[] = []
      for (const next of steps) {
        if (next === 'change') history.set(`v${history.position}`)
        if (next === 'sample') onTheWay.push(history.position - 1)
        const sampledBy = next === 'read' ? onTheWay.shift() : undefined
        if (sampledBy === undefined) continue
        const { version = '', newest = version } = history.between(sent, history.position) ?? {}
        expect(Number(version.slice(1))).toBeLessThanOrEqual(sampledBy)
        expect(Number(newest.slice(1))).toBeGreaterThanOrEqual(sampledBy)
      }
    }),
  )
})
