import { expect, test } from 'vitest'
import { createPolicy, DEFAULT_EXCLUDE, DEFAULT_PROTECTED, mergePackageJson, type Change } from './protect.ts'

const BASE = [
  'src/_pytest/runner.py',
  'pkg/__init__.py',
  'pkg/json.py',
  'pkg/tests/__init__.py',
  'pkg/tests/test_a.py',
  'setup.cfg',
]

function decide(path: string, change: Partial<Change> = {}, gold: string[] = []): string {
  const folders = new Set(
    BASE.flatMap((file) => file.split('/').map((_, index, parts) => parts.slice(0, index).join('/'))),
  )
  const policy = createPolicy({
    exclude: DEFAULT_EXCLUDE,
    protected: DEFAULT_PROTECTED,
    goldPaths: new Set(gold),
    testPaths: new Set(['pkg/tests/test_a.py', 'check/data.txt']),
    command: './tools/run_all.py --fast && make check',
    existed: (name) => BASE.includes(name) || folders.has(name),
    isInBase: (name) => BASE.includes(name),
  })
  const status = BASE.includes(path) ? 'M' : 'A'
  const decision = policy({ path, status, mode: '100644', blob: 'b', ...change })
  return decision.kind === 'drop' ? decision.why : decision.kind
}

test('source files are taken, whatever they are called within a package', () => {
  for (const path of [
    'pkg/x.py',
    'pkg/json.py',
    'pkg/types.py',
    'pkg/unittest/a.py',
    'src/_pytest/runner.py',
    'x/setup.py',
  ])
    expect(decide(path), path).toBe('take')
  expect(decide('pkg/__init__.py', { status: 'D' })).toBe('take')
})

test('what decides which tests run and how is not, unless the gold patch changes it', () => {
  for (const path of [
    'conftest.py',
    'a/b/conftest.py',
    'setup.cfg',
    'x.pth',
    'p.egg-info/PKG-INFO',
    'a_test.go',
    'go.mod',
  ])
    expect(decide(path), path).toBe('protected')
  for (const path of ['tools/run_all.py', 'Makefile', 'ui/jest.config.cjs', 'ui/a.test.tsx', 'ui/__tests__/x.js'])
    expect(decide(path), path).toBe('protected')
  expect(decide('setup.cfg', {}, ['setup.cfg'])).toBe('take')
  expect(decide('check/data.txt')).toBe('test')
})

test('modules that would be loaded in place of the runner’s are not', () => {
  for (const path of [
    'pytest.py',
    'pytest/__init__.py',
    'json.py',
    'src/os/x.py',
    'pkg/tests/unittest.py',
    're.cpython-311.so',
  ])
    expect(decide(path), path).toBe('shadow')
})

test('what nobody wrote, what is not here, and what has no name is not', () => {
  expect(decide('pkg/__pycache__/a.pyc')).toBe('excluded')
  expect(decide('sub', { mode: '160000' })).toBe('submodule')
  expect(decide('env.txt', { status: 'D' })).toBe('environment')
  expect(decide('a\ufffdb')).toBe('name')
})

test('of package.json the agent has all but what runs tests', () => {
  expect(decide('ui/package.json')).toBe('merge')
  const base = '{"scripts":{"test":"jest"},"main":"a.js"}'
  const agents = '{"scripts":{"test":"true"},"jest":{"bail":true},"main":"b.js","exports":{}}'
  expect(JSON.parse(mergePackageJson(base, agents)!)).toEqual({ scripts: { test: 'jest' }, main: 'b.js', exports: {} })
  expect(mergePackageJson(base, '[]')).toBeUndefined()
  expect(mergePackageJson('{', agents)).toBeUndefined()
})
