import { expect, test } from 'vitest'
import { RolloutError } from '../model/failure.ts'
import { isAway, isFull } from './database.ts'

const errorOf = (code: string): Error => Object.assign(new Error('no'), { code })

test.each(['ECONNREFUSED', '57P01', '08006', '53300'])('isAway() is true for %s, and isFull() is not', (code) => {
  expect([isAway(errorOf(code)), isFull(errorOf(code))]).toEqual([true, false])
})

test.each(['53100', 'ENOSPC', 'EDQUOT'])('isFull() and isAway() are true for %s', (code) => {
  expect([isAway(errorOf(code)), isFull(errorOf(code))]).toEqual([true, true])
})

test('isAway() is false for what asking again does not change', () => {
  expect(isAway(errorOf('23505'))).toBe(false)
  expect(isAway(new RolloutError('request.conflict', 'no'))).toBe(false)
  expect(isFull(new RolloutError('request.conflict', 'no'))).toBe(false)
})
