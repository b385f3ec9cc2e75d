import { expect, test } from 'vitest'
import { imageCandidates } from './images.ts'
import { InstanceRow, toInstance } from './instance.ts'

const ROW = { instance_id: 'a__b-1', repo: 'A/B', base_commit: 'c0', FAIL_TO_PASS: ['t.py::x'], PASS_TO_PASS: [] }

function instanceOf(row: Record<string, unknown>) {
  return toInstance(InstanceRow.parse({ ...ROW, ...row }))
}

test('names of tests are parsed from lists, JSON, Python literals and objects', () => {
  const names = ['t.py::x[a]', 't.py::y[\'b\', "c"]']
  const python = `['t.py::x[a]', "t.py::y['b', \\"c\\"]"]`
  for (const written of [names, JSON.stringify(names), python, Object.fromEntries(names.map((name) => [name, {}]))])
    expect(instanceOf({ FAIL_TO_PASS: written }).FAIL_TO_PASS).toEqual(names)
  expect(InstanceRow.safeParse({ ...ROW, FAIL_TO_PASS: 'what?' }).success).toBe(false)
})

test('unknown fields are kept', () => {
  expect(InstanceRow.parse({ ...ROW, hints_text: 'x', difficulty: 3 })).toMatchObject({
    hints_text: 'x',
    difficulty: 3,
  })
})

test('toInstance() reads the fields of SWE-rebench, SWE-smith, SWE-bench Pro and Multi-SWE-bench', () => {
  expect(instanceOf({ install_config: { test_cmd: 'pytest -q', log_parser: 'parse_log_pytest' } })).toMatchObject({
    testCommand: 'pytest -q',
    logParser: 'parse_log_pytest',
  })
  expect(instanceOf({ test_cmds: ['make', 'pytest'] }).testCommand).toBe('make\npytest')
  const pro = { FAIL_TO_PASS: undefined, PASS_TO_PASS: undefined, fail_to_pass: "['a']", pass_to_pass: '["b"]' }
  expect(instanceOf(pro)).toMatchObject({ FAIL_TO_PASS: ['a'], PASS_TO_PASS: ['b'] })
  const multi = {
    org: 'cli',
    repo: 'cli',
    number: 7,
    base: { sha: 'abc', ref: 'trunk' },
    fix_patch: 'diff --git a/x.go b/x.go\n',
    f2p_tests: { TestA: {} },
    n2p_tests: { TestB: {} },
    p2p_tests: { TestC: {} },
  }
  expect(toInstance(InstanceRow.parse(multi))).toMatchObject({
    id: 'cli__cli-7',
    repo: 'cli/cli',
    baseCommit: 'abc',
    FAIL_TO_PASS: ['TestA', 'TestB'],
    PASS_TO_PASS: ['TestC'],
    goldPaths: new Set(['x.go']),
  })
})

test('the script of a row is divided into setup and tests', () => {
  const script = `#!/bin/bash
set -uxo pipefail
source /opt/miniconda3/bin/activate
cd /testbed
git status
git show
git -c core.fileMode=false diff c0
export X=1
git checkout c0 t.py
git apply -v - <<'EOF'
x
EOF
: '>>>>> Start Test Output'
pytest -rA t.py
: '>>>>> End Test Output'
git checkout c0 t.py`
  expect(instanceOf({ eval_script: script }).script).toEqual({
    setup: 'source /opt/miniconda3/bin/activate\ncd /testbed\nexport X=1',
    tests: 'pytest -rA t.py',
  })
})

test('files in the names of tests are test files', () => {
  const { testPaths, testFiles } = instanceOf({
    test_patch: 'diff --git a/t/new.py b/t/new.py\n--- /dev/null\n+++ b/t/new.py\n',
    PASS_TO_PASS: ['t/old.py::C::x[a::b]', 'test_x (m.C)', 'TestGo/sub'],
  })
  expect(testPaths).toEqual(new Set(['t/new.py', 't.py', 't/old.py']))
  expect(testFiles).toEqual(['t/new.py'])
})

test('imageCandidates() lists the image of the row first, then those of the datasets', () => {
  const row = { instance_id: 'Django__django-1', image: 'mine:1' }
  expect(imageCandidates(row).slice(0, 4)).toEqual([
    'mine:1',
    'swebench/sweb.eval.x86_64.django_1776_django-1:latest',
    'sweb.eval.x86_64.django__django-1:latest',
    'xingyaoww/sweb.eval.x86_64.django_s_django-1:latest',
  ])
  expect(imageCandidates(row, ['r.io/{owner}/{name}:{number}', '{raw_id}', '{what}'])).toEqual([
    'r.io/django/django:1',
    'Django__django-1',
    '{what}',
  ])
})
