import pino from 'pino'
import { expect, test } from 'vitest'
import { surviveErrors } from '../compose/survive-errors.ts'

test.each([
  [Object.assign(new Error('no memory'), { code: 'ERR_MEMORY_ALLOCATION_FAILED' }), true],
  [new RangeError('Array buffer allocation failed'), true],
  [new RangeError('Invalid array length'), false],
  [new Error('allocation failed'), false],
  ['thrown text', false],
])('surviveErrors() calls onBroken for an error that says that there is no memory: %s, %s', (error, isBroken) => {
  let broken = 0
  const before = new Set(process.listeners('uncaughtException'))
  using _ = surviveErrors(pino({ level: 'silent' }), { onBroken: () => void (broken += 1) })
  const added = process.listeners('uncaughtException').filter((listener) => !before.has(listener))
  expect(added).toHaveLength(1)
  added[0]!(error as Error, 'uncaughtException')
  expect(broken).toBe(isBroken ? 1 : 0)
})
