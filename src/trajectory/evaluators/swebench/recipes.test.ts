import { expect, test } from 'vitest'
import { withCanaries } from './canary.ts'
import { InstanceRow, toInstance } from './instance.ts'
import { detectRunner, toRecipe, withDirectives } from './recipes.ts'

function recipeOf(row: Record<string, unknown>, overrides = {}) {
  const base = { instance_id: 'x', base_commit: 'c', FAIL_TO_PASS: ['t'], PASS_TO_PASS: [], ...row }
  const instance = toInstance(InstanceRow.parse(base))
  const recipe = toRecipe(instance, overrides)
  return { ...recipe, whole: withDirectives(recipe.command, recipe.toDirectives(instance.testFiles)) }
}

function patchOf(...paths: string[]): string {
  return paths.map((path) => `diff --git a/${path} b/${path}\n`).join('')
}

test('repositories of SWE-bench and SWE-Gym have the commands of their harnesses', () => {
  const commandOf = (repo: string, version: string, ...paths: string[]) =>
    recipeOf({ repo, version, test_patch: patchOf(...paths) }).whole
  expect(commandOf('django/django', '3.0', 'tests/a/tests.py', 'tests/a/b/test_c.py', 'tests/a/x.json')).toBe(
    './tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1 a.tests a.b.test_c',
  )
  expect(commandOf('django/django', '1.9', 'tests/a/tests.py')).toBe('./tests/runtests.py --verbosity 2 a.tests')
  expect(commandOf('astropy/astropy', '1.3', 'a/test_b.py')).toContain(
    'console_output_style=classic --tb=no a/test_b.py',
  )
  expect(commandOf('astropy/astropy', '5.1', 'a/test_b.py')).toBe('pytest -rA a/test_b.py')
  expect(commandOf('sphinx-doc/sphinx', '3.1', 'tests/test_x.py', 'tests/roots/a.txt')).toBe(
    'tox --current-env -epy39 -v -- tests/test_x.py',
  )
  expect(commandOf('sympy/sympy', '1.9', 'sympy/a/tests/test_b.py')).toMatch(/bin\/test -C --verbose sympy\/a\/tests/)
  expect(commandOf('Project-MONAI/MONAI', '0.9', "tests/test 'q'.py")).toBe(`pytest -rA 'tests/test '\\''q'\\''.py'`)
  const mypy = { repo: 'python/mypy', version: '1', test_patch: '[case testA]\n+[case testB]\n' }
  expect(recipeOf(mypy).whole).toBe("pytest -n0 -rA -k 'testA or testB'")
})

test('settings take precedence over the row, the row over the table, and a script names its own tests', () => {
  const row = { repo: 'django/django', version: '3.0', test_patch: patchOf('tests/t.py'), test_cmd: 'pytest' }
  expect(recipeOf(row, { test_cmd: 'tox {tests} -q', log_parser: 'pytest_v2' }).whole).toBe('tox tests/t.py -q')
  expect(recipeOf(row).whole).toBe('pytest tests/t.py')
  const script = ": '>>>>> Start Test Output'\npytest a.py\n: '>>>>> End Test Output'"
  expect(recipeOf({ ...row, test_cmd: undefined, eval_script: script }).whole).toBe('pytest a.py')
  expect(recipeOf({ test_cmd: 'go test -v ./pkg -run "^TestX"', test_patch: patchOf('pkg/a_test.go') }).whole).toBe(
    'go test -v ./pkg -run "^TestX"',
  )
  expect(recipeOf({ test_cmd: 'go test -v', test_patch: patchOf('pkg/a_test.go', 'pkg/b_test.go') }).whole).toBe(
    'go test -v ./pkg',
  )
})

test('detectRunner() recognises runners by their commands', () => {
  const commands = {
    'python -m pytest -rA': 'pytest',
    'npx vitest run --reporter=verbose': 'vitest',
    './node_modules/.bin/jest --verbose': 'jest',
    'npx mocha -R tap': 'mocha',
    'node --test --test-reporter=tap': 'node',
    'go test -v ./...': 'go',
    'python -m unittest -v': 'unittest',
    'bin/test -C': 'sympy',
    'cargo test': undefined,
  }
  for (const [command, runner] of Object.entries(commands)) expect(detectRunner(command), command).toBe(runner)
})

test('withCanaries() adds the canaries to the filter of go test', () => {
  const canaries = [{ nonce: 'abc', file: 'x_test.go' }]
  expect(withCanaries('go test -v ./p -run "^TestA"', 'go', canaries)).toBe("go test -v ./p -run '(^TestA)|^Test_abc$'")
  expect(withCanaries('go test -run=TestA ./p', 'go', canaries)).toBe("go test -run='(TestA)|^Test_abc$' ./p")
  expect(withCanaries('go test -run TestA/sub ./p', 'go', canaries)).toBe('go test -run TestA/sub ./p')
  expect(withCanaries('pytest -run x', 'pytest', canaries)).toBe('pytest -run x')
})
