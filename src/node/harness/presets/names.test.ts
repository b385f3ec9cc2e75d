import { expect, test } from 'vitest'
import { HARNESS_NAMES, whyUnsupported } from '../../../model/strategy-names.ts'
import { presets } from './index.ts'

test('the names that tasks may use are those of the presets', () => {
  expect([...HARNESS_NAMES].sort()).toEqual(presets.map(({ name }) => name).sort())
})

test('no preset is refused when a task is read', () => {
  expect(presets.filter(({ name }) => whyUnsupported('harness', name) !== undefined)).toEqual([])
})
