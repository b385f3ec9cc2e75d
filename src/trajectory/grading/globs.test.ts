import { expect, test } from 'vitest'
import { matchesGlobs, toExcludingPathspecs } from './globs.ts'
import { cpuTimeMs } from '../../../test/support/cpu-time.ts'

test('a name matches files and folders of that name at any depth, and everything below them', () => {
  const matches = matchesGlobs(['node_modules', '*.py[c]', 'a?c'])
  expect(['node_modules', 'x/node_modules/y/z', 'abc', 'q/axc/d', 'x.py[c]'].filter(matches)).toHaveLength(5)
  expect(['node_modules2', 'my_node_modules', 'abbc', 'x.pyc', 'a/c'].filter(matches)).toEqual([])
})

test('a path is relative to the root, and ** matches several folders', () => {
  const matches = matchesGlobs(['/Makefile', 'docs/*.md', 'src/**/gen', 'vendor/'])
  expect(['Makefile', 'docs/a.md', 'src/gen/x', 'src/a/b/gen', 'vendor/x', 'x/vendor/y'].filter(matches)).toHaveLength(
    6,
  )
  expect(['x/Makefile', 'docs/x/a.md', 'x/docs/a.md', 'src/regen'].filter(matches)).toEqual([])
})

test('names with a newline are matched', () => {
  expect(matchesGlobs(['conftest.py'])('a\nb/conftest.py')).toBe(true)
})

test('toExcludingPathspecs() excludes the same files in git', () => {
  expect(toExcludingPathspecs(['*.pyc', 'docs/x'])).toEqual([
    ':(exclude,glob)**/*.pyc',
    ':(exclude,glob)**/*.pyc/**',
    ':(exclude,glob)docs/x',
    ':(exclude,glob)docs/x/**',
  ])
})

test('matching a hostile path takes bounded time', () => {
  const isCovered = matchesGlobs(['**/a/**/a/**/a/**/b', '*a*a*a*a*a*a*a*b'])
  const startedAt = cpuTimeMs()
  expect(isCovered('a/'.repeat(20_000))).toBe(false)
  expect(isCovered('a'.repeat(20_000))).toBe(false)
  expect(cpuTimeMs() - startedAt).toBeLessThan(2000)
})
