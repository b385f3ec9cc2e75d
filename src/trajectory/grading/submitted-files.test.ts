import { expect, test } from 'vitest'
import { excludedIn } from './submitted-files.ts'

const SELECTION = { paths: ['.', '/app'], exclude: ['*.pyc', 'app/own'], max_mb: 1, max_files: 10 }

test('excludedIn() matches exclude against paths relative to the workdir and to the root', () => {
  expect(['a.pyc', 'd/a.pyc', 'app/own/x'].filter(excludedIn(SELECTION, '.'))).toHaveLength(3)
  expect(['own/x', 'a.pyc'].filter(excludedIn(SELECTION, '/app'))).toEqual(['own/x', 'a.pyc'])
  expect(['own/x', 'tests/x.py', 'Makefile', ''].filter(excludedIn(SELECTION, '.'))).toEqual([])
})

test('excludedIn() with protect_tests matches files that run, configure or build tests, in any folder', () => {
  const covered = [
    'tests/helpers.py',
    'conftest.py',
    'pytest.py',
    '_pytest/__init__.py',
    'Makefile',
    'package.json',
    'ui/node_modules/jest/index.js',
    '.venv/lib/x.py',
    '.git/config',
    'sub/.git/hooks/pre-commit',
  ]
  const free = ['src/main.py', 'pkg/json.py', '.git/HEAD', 'README.md', '']
  for (const path of SELECTION.paths) {
    const isExcluded = excludedIn({ ...SELECTION, protect_tests: true }, path)
    expect(covered.filter(isExcluded)).toEqual(covered)
    expect(free.filter(isExcluded)).toEqual([])
  }
})
