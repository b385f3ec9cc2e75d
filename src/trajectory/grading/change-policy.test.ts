import { expect, test } from 'vitest'
import { createPolicy, mergePackageJson, type Change } from './change-policy.ts'
import { DEFAULT_EXCLUDE, DEFAULT_PROTECTED } from './protected-files.ts'

const BASE = [
  'django/test/__init__.py',
  'django/test/client.py',
  'lib/test/__init__.py',
  'lib/test/test_x.py',
  'run.sh',
  'src/_pytest/runner.py',
  'pkg/__init__.py',
  'pkg/json.py',
  'pkg/tests/__init__.py',
  'pkg/tests/test_a.py',
  'setup.cfg',
]

function decide(
  path: string,
  change: Partial<Change> = {},
  rules: { gold?: string[]; editable?: string[] } = {},
): string {
  const policy = createPolicy({
    exclude: DEFAULT_EXCLUDE,
    protected: DEFAULT_PROTECTED,
    editable: rules.editable ?? [],
    goldPaths: new Set(rules.gold),
    testPaths: new Set(['pkg/tests/test_a.py', 'check/data.txt']),
    command: './tools/run_all.py --fast && make check; bash run.sh',
    basePaths: new Set(BASE),
  })
  const status = BASE.includes(path) ? 'M' : 'A'
  const old = { oldMode: status === 'M' ? '100644' : '000000', oldBlob: '0' }
  const decision = policy({ path, status, mode: '100644', blob: 'b', ...old, ...change })
  return decision.kind === 'drop' ? decision.why : decision.kind
}

test('createPolicy() accepts source files with any name within a package', () => {
  for (const path of [
    'pkg/x.py',
    'pkg/json.py',
    'pkg/types.py',
    'pkg/unittest/a.py',
    'src/_pytest/runner.py',
    'x/setup.py',
    'django/test/client.py',
    'contest/x.py',
    'latest/x.py',
    'pkg/spec/x.py',
    'pkg/vendor/x.py',
  ])
    expect(decide(path), path).toBe('take')
  expect(decide('pkg/__init__.py', { status: 'D' })).toBe('take')
})

test('createPolicy() drops files that configure tests, unless the gold patch changes them', () => {
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
  expect(decide('setup.cfg', {}, { gold: ['setup.cfg'] })).toBe('take')
  expect(decide('check/data.txt')).toBe('test')
})

test.each<[string, string[]]>([
  ['helpers and data of tests', ['tests/helpers.py', 'pkg/tests/data/x.json', 'lib/test/helper.py', 'test/util.js']],
  ['Python', ['pytest.toml', '.pytest.ini', 'tox.ini', 'setup.cfg', 'pyproject.toml', 'usercustomize.py']],
  ['make', ['GNUmakefile', 'sub/makefile', 'rules.mk', 'Makefile.am']],
  ['JavaScript', ['ava.config.js', '.mocharc.yml', '.npmrc', 'vitest.setup.ts', '__mocks__/fs.js', 'bunfig.toml']],
  ['Go', ['go.work', 'vendor/x/y.go', 'vendor/modules.txt', 'a/testdata/x', 'go.env']],
  ['Rust', ['build.rs', 'Cargo.toml', '.cargo/config.toml']],
  ['Java', ['pom.xml', 'build.gradle.kts', '.mvn/jvm.config', 'src/test/resources/x', 'a/BTest.java']],
  ['Ruby', ['.rspec', 'Rakefile', 'Gemfile', 'spec/spec_helper.rb']],
  ['PHP', ['phpunit.xml.dist', 'a/BTest.php']],
  ['C', ['CMakeLists.txt', 'build/CTestTestfile.cmake', 'meson.build']],
  ['shells and git', ['.bashrc', '.envrc', '.gitattributes', '.husky/pre-commit', '.gitmodules']],
  ['the script that the command runs', ['run.sh']],
])('files that decide how tests run are protected: %s', (_, paths) => {
  for (const path of paths) {
    expect(decide(path), path).toBe('protected')
    expect(decide(path, {}, { editable: [`/${path}`] }), path).toBe('take')
  }
})

test('an editable pattern permits neither graded tests nor excluded files', () => {
  expect(decide('pkg/tests/test_a.py', {}, { editable: ['**'] })).toBe('test')
  expect(decide('node_modules/x/index.js', {}, { editable: ['**'] })).toBe('excluded')
})

test('createPolicy() drops modules that shadow those of the test runner', () => {
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

test('createPolicy() drops generated files, submodules and names that are not UTF-8', () => {
  expect(decide('pkg/__pycache__/a.pyc')).toBe('excluded')
  expect(decide('sub', { mode: '160000' })).toBe('submodule')
  expect(decide('sub', { mode: '000000', oldMode: '160000', status: 'D' })).toBe('submodule')
  expect(decide('env.txt', { status: 'D' })).toBe('environment')
  expect(decide('a\ufffdb')).toBe('name')
})

test('mergePackageJson() keeps the agent’s keys except those of test runners', () => {
  expect(decide('ui/package.json')).toBe('merge')
  const base = '{"scripts":{"test":"jest"},"main":"a.js"}'
  const agents = '{"scripts":{"test":"true"},"jest":{"bail":true},"main":"b.js","exports":{}}'
  expect(JSON.parse(mergePackageJson(base, agents)!)).toEqual({ scripts: { test: 'jest' }, main: 'b.js', exports: {} })
  expect(mergePackageJson(base, '[]')).toBeUndefined()
  expect(mergePackageJson('{', agents)).toBeUndefined()
})
