import { expect, test } from 'vitest'
import { HARNESS_NAMES, whyUnsupported } from '../../../model/strategy-names.ts'
import { presets } from './index.ts'

test('harness names in tasks are the names of the presets', () => {
  expect([...HARNESS_NAMES].sort()).toEqual(presets.map(({ name }) => name).sort())
})

test('a task may name every preset', () => {
  expect(presets.filter(({ name }) => whyUnsupported('harness', name) !== undefined)).toEqual([])
})
