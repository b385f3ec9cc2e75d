import { readFile } from 'node:fs/promises'
import { expect, test } from 'vitest'
import { describeError, errnoOf } from './errno.ts'

test('describeError() describes a system error with its code', async () => {
  const error: unknown = await readFile('/dev/null/x').catch((reason: unknown) => reason)
  expect(errnoOf(error)).toBe('ENOTDIR')
  expect(describeError(error)).toBe('a part of the path is a file, not a directory (ENOTDIR)')
})

test('describeError() returns the message of any other error', () => {
  expect(describeError(new Error('no luck'))).toBe('no luck')
  expect(describeError(Object.assign(new Error('EFOO: odd'), { code: 'EFOO' }))).toBe('EFOO: odd')
  expect(describeError('text')).toBe('text')
  expect(errnoOf(Object.assign(new Error('x'), { code: 5 }))).toBeUndefined()
})
