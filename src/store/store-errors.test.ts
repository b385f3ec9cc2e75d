import { expect, test } from 'vitest'
import { RolloutError } from '../model/failure.ts'
import { isOutOfSpace, isUnavailable } from './store-errors.ts'

const errorOf = (code: string): Error => Object.assign(new Error('no'), { code })

test.each(['ECONNREFUSED', '57P01', '08006', '53300'])(
  'isUnavailable() is true and isOutOfSpace() false for %s',
  (code) => {
    expect([isUnavailable(errorOf(code)), isOutOfSpace(errorOf(code))]).toEqual([true, false])
  },
)

test.each(['53100', 'ENOSPC', 'EDQUOT'])('isOutOfSpace() and isUnavailable() are true for %s', (code) => {
  expect([isUnavailable(errorOf(code)), isOutOfSpace(errorOf(code))]).toEqual([true, true])
})

test('isUnavailable() is false for an error that a retry does not change', () => {
  expect(isUnavailable(errorOf('23505'))).toBe(false)
  expect(isUnavailable(new RolloutError('request.conflict', 'no'))).toBe(false)
  expect(isOutOfSpace(new RolloutError('request.conflict', 'no'))).toBe(false)
})
