import { realpathSync } from 'node:fs'
import { writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { EvalResult } from '../../src/model/reward.ts'
import { evaluators } from '../../src/trajectory/evaluators/index.ts'
import { Grading, type Graded, type GradeOptions } from '../support/grade.ts'
import { pythonEnvironment } from '../support/python-environment.ts'
import { createTinyRepository, type TinyRepository } from '../support/tiny-repository.ts'

const { python, install } = pythonEnvironment('swebench', 'swebench-requirements.txt', ['--no-deps'])
const bin = dirname(python)

const OLD_TESTS = `import unittest
from calc.core import add, multiply


class CalcTest(unittest.TestCase):
    def test_multiply(self):
        self.assertEqual(multiply(3, 4), 12)
`
const NEW_TESTS = `${OLD_TESTS}
    def test_add(self):
        self.assertEqual(add(2, 2), 4)
`
const BROKEN = 'def add(a, b):\n    return a - b\n\n\ndef multiply(a, b):\n    return a * b\n'
const FIXED = BROKEN.replace('a - b', 'a + b')
const FIX = `sed -i 's/a - b/a + b/' calc/core.py`
const REPOSITORY = {
  '.gitignore': '*.pyc\n__pycache__/\nbuild/\n',
  'calc/__init__.py': '',
  'calc/core.py': BROKEN,
  'tests/__init__.py': '',
  'tests/test_core.py': OLD_TESTS,
  'tests/helper.py': 'LIMIT = 3\n',
}

let missing: string | undefined
let grading: Grading
let repository: TinyRepository
let row: Record<string, unknown>

beforeAll(async () => {
  missing = install()
  grading = await Grading.start()
  repository = createTinyRepository(grading.dir, REPOSITORY)
  row = {
    instance_id: 'tiny__calc-1',
    repo: 'tiny/calc',
    version: '1.0',
    base_commit: repository.baseCommit,
    patch: repository.patchOf({ 'calc/core.py': FIXED }),
    test_patch: repository.patchOf({
      'tests/test_core.py': NEW_TESTS,
      'tests/test_signs.py': 'from calc.core import add\n\n\ndef test_negative():\n    assert add(-1, -1) == -2\n',
    }),
    FAIL_TO_PASS: JSON.stringify(['tests/test_core.py::CalcTest::test_add', 'tests/test_signs.py::test_negative']),
    PASS_TO_PASS: ['tests/test_core.py::CalcTest::test_multiply'],
    problem_statement: 'add() subtracts',
  }
}, 300_000)
afterAll(() => grading?.[Symbol.asyncDispose]())

interface Report {
  resolved: boolean
  empty_generation: boolean
  failed_apply_patch: boolean
  forged_results: boolean
  test_timeout: boolean
  dropped_files?: { path: string; why: string }[]
  [key: string]: unknown
}

function grade(
  agent: string,
  config: Record<string, unknown> = {},
  options: Partial<GradeOptions> = {},
): Promise<Graded> {
  const parsed = evaluators.config.parse({ kind: 'swebench', instance: row, test_timeout_seconds: 60, ...config })
  const deps = { now: Date.now, secret: () => undefined, mayCall: () => false }
  const prefix = dirname(dirname(realpathSync(python)))
  const places = [dirname(bin), ...(prefix.startsWith('/usr') ? [] : [prefix])]
  return grading.grade({
    evaluator: evaluators.create(parsed, deps),
    agent,
    prepare: [
      { type: 'upload_file', source: repository.archive, target: '/tmp/repository.tar' },
      { type: 'exec', command: 'tar xf /tmp/repository.tar' },
    ],
    spec: {
      env: { PATH: `${bin}:/usr/local/bin:/usr/bin:/bin`, PYTHONDONTWRITEBYTECODE: '1' },
      mounts: places.map((place) => ({ source: place, target: place, isReadOnly: true })),
    },
    ...options,
  })
}

function reportOf(result: EvalResult): Report {
  return result.metadata as unknown as Report
}

const needsPython = test.extend('python', async ({ skip }) => {
  if (missing !== undefined) skip(`the swebench package cannot be installed here: ${missing}`)
  return python
})

/** Returns a command that writes `text` to a file unchanged. */
function put(path: string, text: string): string {
  return `mkdir -p "$(dirname '${path}')" && cat > '${path}' <<'END_OF_FILE'\n${text}\nEND_OF_FILE\n`
}

describe('the graded patch', () => {
  needsPython('the gold patch gets reward 1, with evidence', async () => {
    const { result, evidence, graders } = await grade(FIX)
    expect(reportOf(result)).toMatchObject({ resolved: true, canary: 'failed', control_run: false, exit_code: 1 })
    expect(result).toMatchObject({ outcome_reward: 1, components: { fail_to_pass: 1, pass_to_pass: 1 } })
    expect(graders).toBe(1)
    expect(evidence.get('patch.diff')?.toString()).toContain('+    return a + b')
    expect(evidence.get('test-output.log')?.toString()).toContain('PASSED tests/test_signs.py::test_negative')
    expect(JSON.parse(evidence.get('report.json')!.toString())).toMatchObject({ instance_id: 'tiny__calc-1' })
  })

  needsPython('an empty patch gets reward 0 and needs no sandbox', async () => {
    const { result, graders } = await grade('true')
    expect(result.outcome_reward).toBe(0)
    expect(reportOf(result)).toMatchObject({ empty_generation: true, resolved: false })
    expect(graders).toBe(0)
  })

  needsPython(
    'a patch that passes only some tests gets reward 0, with the share of passed tests as components',
    async () => {
      const half = put('calc/core.py', BROKEN.replace('a - b', 'a + b if a > 0 else a - b'))
      const { result } = await grade(half)
      expect(result).toMatchObject({ outcome_reward: 0, components: { fail_to_pass: 0.5, pass_to_pass: 1 } })
      expect(reportOf(result)).toMatchObject({
        FAIL_TO_PASS: {
          success: ['tests/test_core.py::CalcTest::test_add'],
          failure: ['tests/test_signs.py::test_negative'],
        },
      })
    },
  )

  needsPython(
    'the patch contains committed, staged, untracked and force-added files, links and file modes',
    async () => {
      const agent = `
git config user.email a@b; git config user.name a
${put('calc/one.py', 'from calc.two import plus')}
git add calc/one.py; git commit -qm one
${put('calc/two.py', 'from calc.build.three import plus')}
git add calc/two.py
${put('calc/build/three.py', 'from calc.four import plus')}
touch calc/build/__init__.py
git add -f calc/build
${put('calc/real_four.py', 'def plus(a, b):\n    return a + b')}
ln -s real_four.py calc/four.py
${put('calc/core.py', 'from calc.one import plus\n\n\ndef add(a, b):\n    return plus(a, b)\n\n\ndef multiply(a, b):\n    return a * b')}
chmod +x calc/core.py`
      const { result, evidence } = await grade(agent)
      expect(result.outcome_reward).toBe(1)
      expect(evidence.get('patch.diff')?.toString()).toMatch(
        /new file mode 120000[\s\S]*new mode 100755|new mode 100755[\s\S]*new file mode 120000/,
      )
    },
  )

  needsPython(
    'settings, attributes, hooks and filters of the repository do not change the collected patch',
    async () => {
      const agent = `${FIX}
printf '* -diff\n*.py filter=evil diff=evil\n*.py text eol=crlf\n' > .gitattributes
printf '*.py filter=evil\n' > .git/info/attributes
printf '*\n' > .git/info/exclude
git config filter.evil.clean 'cat /dev/null'; git config filter.evil.required true
git config diff.evil.textconv 'echo no'; git config diff.external /bin/false; git config core.fileMode false
git config core.autocrlf true; git config core.hooksPath "$PWD/hooks"; git config diff.noprefix true
git config core.fsmonitor /bin/false; git config core.worktree /tmp; git config core.excludesFile .gitattributes
git config diff.renames copies; git config color.ui always
git update-index --assume-unchanged calc/core.py`
      const { result, evidence } = await grade(agent)
      expect(result.outcome_reward).toBe(1)
      expect(evidence.get('patch.diff')?.toString()).toContain('+    return a + b\n')
    },
  )

  needsPython('nested repositories are not part of the patch', async () => {
    const clone = 'mkdir copy empty && git -C copy init -q && git -C empty init -q && touch copy/x empty/y'
    const commit = 'git -C copy add x && git -C copy -c user.name=a -c user.email=a@b commit -qm x'
    const { result, evidence } = await grade(`${FIX} && ${clone} && ${commit}`)
    expect(result.outcome_reward).toBe(1)
    expect(evidence.get('patch.diff')?.toString()).not.toContain('copy')
  })

  needsPython('a file or patch above the size limit gets reward 0 and counts as caused by the agent', async () => {
    const { result } = await grade(`${FIX}; head -c 3000000 /dev/zero > big.bin`, { max_patch_bytes: 2_000_000 })
    expect(result).toMatchObject({ outcome_reward: 0, metadata: { failure: 'workspace.too-large' } })
    expect(String(result.metadata['message'])).toContain('big.bin')
    const many = 'for i in 1 2 3; do head -c 900000 /dev/urandom > part$i.bin; done'
    const { result: second } = await grade(`${FIX}; ${many}`, { max_patch_bytes: 2_000_000 })
    expect(second).toMatchObject({ outcome_reward: 0, metadata: { failure: 'workspace.too-large' } })
  })

  needsPython('generated files such as node_modules and __pycache__ are not part of the patch', async () => {
    const agent = `${FIX}; printf '' > .gitignore; mkdir -p node_modules/x calc/__pycache__; echo 1 > node_modules/x/i.js; echo 1 > calc/__pycache__/a.pyc`
    const { result, evidence } = await grade(agent)
    expect(result.outcome_reward).toBe(1)
    expect(evidence.get('patch.diff')?.toString()).not.toMatch(/i\.js|a\.pyc/)
  })

  needsPython('a destroyed repository gets reward 0', async () => {
    const { result } = await grade('rm -rf .git')
    expect(result.outcome_reward).toBe(0)
    expect(reportOf(result)).toMatchObject({ failed_collect: true })
    const rewritten = 'rm -rf .git && git init -q && git add -A && git -c user.name=a -c user.email=a@b commit -qm x'
    expect((await grade(rewritten)).result.outcome_reward).toBe(0)
  })

  needsPython('changes of the image against its base commit are not part of the patch', async () => {
    const image =
      "printf 'pinned\\n' > requirements.txt; sed -i s/3/4/ tests/helper.py; mkdir -p tools; touch tools/env"
    const commit = 'git -c user.name=a -c user.email=a@b commit -qam env'
    const prepare = [
      { type: 'upload_file' as const, source: repository.archive, target: '/tmp/repository.tar' },
      { type: 'exec' as const, command: `tar xf /tmp/repository.tar; ${image}; ${commit}` },
    ]
    expect(reportOf((await grade('true', {}, { prepare })).result)).toMatchObject({ empty_generation: true })
    const hidden = `${FIX}; echo tools/ >> .gitignore`
    const { result, evidence } = await grade(hidden, {}, { prepare })
    expect(result.outcome_reward).toBe(1)
    expect(reportOf(result).dropped_files).toEqual([{ path: 'tools/env', why: 'environment' }])
    expect(evidence.get('graded.diff')?.toString()).not.toContain('requirements.txt')
  })
})

describe('swebench_harness, with the settings of NVIDIA Polar', () => {
  const copy = 'mkdir -p /tmp/work && cp -a . /tmp/work/ && cd /tmp/work'
  const patchCommand = 'cd /tmp/work && git add -A && git diff --cached --binary'

  function gradeTheirs(agent: string, config: Record<string, unknown> = {}): Promise<Graded> {
    const kind = 'swebench_harness'
    const given = { kind, instance: row, repo_dir: '/workspace', test_timeout: 60, apply_timeout: 60, ...config }
    const deps = { now: Date.now, secret: () => undefined, mayCall: () => false }
    return grade(agent, {}, { evaluator: evaluators.create(evaluators.config.parse(given), deps) })
  }

  needsPython('patch_command reads the patch from a copy of the repository', async () => {
    const agent = `${copy} && ${FIX} && mkdir .claude && echo x > .claude/x`
    const { result, evidence } = await gradeTheirs(agent, {
      patch_command: patchCommand,
      exclude_patterns: ['.claude/**', '**/.claude/**', '$HOME/**'],
    })
    expect(result.outcome_reward).toBe(1)
    expect(evidence.get('graded.diff')?.toString()).not.toContain('.claude')
  })

  needsPython('without patch_command the patch contains the changes that git reports in repo_dir', async () => {
    expect((await gradeTheirs(FIX)).result.outcome_reward).toBe(1)
    expect((await gradeTheirs('true')).result.outcome_reward).toBe(0)
  })

  needsPython('a patch_command that also fails in a new sandbox gives no reward', async () => {
    const graded = gradeTheirs(FIX, { patch_command: 'cd /no/such/folder && git diff' })
    await expect(graded).rejects.toMatchObject({ code: 'evaluator.crashed' })
  })

  needsPython('a patch_command that fails only in the sandbox of the agent gives reward 0', async () => {
    const { result } = await gradeTheirs('rm -rf .git', { patch_command: 'cd /workspace && git diff HEAD' })
    expect(result.outcome_reward).toBe(0)
    expect(reportOf(result)).toMatchObject({ failed_collect: true })
  })
})

describe('a patch that did not come from git', () => {
  const submit = (patch: string) => ({
    beforeEvaluate: ({ submission }: { submission: string }) => writeFile(join(submission, 'patch.diff'), patch),
  })

  needsPython('gets reward 0 if it does not apply', async () => {
    const { result } = await grade(
      'true',
      {},
      submit(String(row['patch']).replaceAll('multiply', 'divide').replace('-    return', '-    give')),
    )
    expect(reportOf(result)).toMatchObject({ failed_apply_patch: true, resolved: false })
    expect(String(reportOf(result)['message'])).toContain('calc/core.py')
    expect(result.outcome_reward).toBe(0)
  })

  needsPython('is applied with fuzz, as by patch(1)', async () => {
    const off = String(row['patch']).replace(' def add(a, b):', ' def add(x, y):')
    expect((await grade('true', {}, submit(off))).result.outcome_reward).toBe(1)
  })

  needsPython('has its changes to protected files dropped, also in a part without a git header', async () => {
    const hidden = '--- /dev/null\n+++ b/conftest.py\n@@ -0,0 +1 @@\n+X = 1\n'
    const { result } = await grade('true', {}, submit(`${String(row['patch'])}${hidden}`))
    expect(reportOf(result)).toMatchObject({
      resolved: true,
      dropped_files: [{ path: 'conftest.py', why: 'protected' }],
    })
  })
})

describe('a required test that no log line names', () => {
  const renamed = ['tests/test_core.py::Calc::test_add', 'tests/test_signs.py::test_negative']

  needsPython(
    'gives no reward if the gold patch does not report it either, and the failure lists the nearest names',
    async () => {
      const graded = grade(FIX, { instance: { ...row, FAIL_TO_PASS: renamed } })
      await expect(graded).rejects.toMatchObject({
        code: 'evaluator.tests-not-reported',
        message: expect.stringMatching(
          /Not reported: 1 test of tiny__calc-1.*tests\/test_core\.py::Calc::test_add \(nearest reported: tests\/test_core\.py::CalcTest::test_add/,
        ) as unknown,
      })
    },
  )

  needsPython('gives no reward in a row without gold patch if the run without a patch does not report it', async () => {
    const graded = grade(FIX, { instance: { ...row, patch: '', FAIL_TO_PASS: renamed } })
    await expect(graded).rejects.toMatchObject({ code: 'evaluator.tests-not-reported' })
  })

  needsPython('needs no second run if another required test failed by name', async () => {
    const { result, graders } = await grade(put('calc/more.py', 'X = 1'), {
      instance: { ...row, FAIL_TO_PASS: renamed },
    })
    expect(result.outcome_reward).toBe(0)
    expect(graders).toBe(1)
    expect(reportOf(result)).toMatchObject({
      not_reported: [
        { test: renamed[0], nearest: expect.arrayContaining(['tests/test_core.py::CalcTest::test_add']) as unknown },
      ],
      warning: expect.stringContaining('1 test') as unknown,
    })
  })

  needsPython('gives reward 0 if the gold patch reports it, since then the patch of the agent removed it', async () => {
    const skipping = `import inspect

import pytest


def multiply(a, b):
    return a * b


def __getattr__(name):
    if name != "add":
        raise AttributeError(name)
    if any("test_signs" in frame.filename for frame in inspect.stack()):
        pytest.skip("not today", allow_module_level=True)
    return lambda a, b: a + b`
    const { result, graders } = await grade(put('calc/core.py', skipping))
    expect(result.outcome_reward).toBe(0)
    expect(graders).toBe(2)
    expect(reportOf(result)).toMatchObject({ not_reported: [{ test: 'tests/test_signs.py::test_negative' }] })
  })
})

describe('a failure that is not caused by the agent gives no reward', () => {
  const cases: [string, () => Record<string, unknown>, RegExp][] = [
    [
      'a test patch that does not apply',
      () => ({ instance: { ...row, test_patch: String(row['test_patch']).replaceAll('multiply', 'divide') } }),
      /does not apply/,
    ],
    ['a base commit that the image lacks', () => ({ base: 'f'.repeat(40) }), /has no commit f/],
    ['a test runner that is missing', () => ({ test_cmd: 'no-such-pytest -rA' }), /cannot be run/],
    ['a test runner without output', () => ({ test_cmd: 'true pytest' }), /cannot be run/],
  ]
  for (const [name, config, message] of cases) {
    needsPython(name, async () => {
      await expect(grade(FIX, config())).rejects.toMatchObject({
        code: 'evaluator.crashed',
        message: expect.stringMatching(message) as unknown,
      })
    })
  }

  needsPython('invalid settings are rejected before a sandbox starts', () => {
    const unknown = { ...row, FAIL_TO_PASS: ['works'], PASS_TO_PASS: [] }
    expect(() => grade('true', { instance: unknown })).toThrow(/has no test command\. Set test_cmd/)
    expect(() => grade('true', { log_parser: 'cobol' })).toThrow(/"cobol"\. Use one of pytest,/)
    expect(() => grade('true', { instance: { ...row, FAIL_TO_PASS: '[]', PASS_TO_PASS: [] } })).toThrow(
      /every patch would pass/,
    )
  })
})

/** Puts `code` into the package, so that it runs when a test imports the package. */
const inTests = (code: string): string => put('calc/__init__.py', code)
const ALL_PASSED = [
  'test_core.py::CalcTest::test_add',
  'test_core.py::CalcTest::test_multiply',
  'test_signs.py::test_negative',
]
  .map((name) => `PASSED tests/${name}`)
  .join('\\n')

/** Opens stdout of the parent process, which bypasses the output capture of pytest. */
const RAW = 'import os\nraw = open("/proc/%d/fd/1" % os.getppid(), "w")'

describe('a patch that manipulates the tests gets no reward for it', () => {
  const CONFTEST =
    'import pytest\n\n\n@pytest.hookimpl(hookwrapper=True)\ndef pytest_runtest_makereport(item, call):\n    outcome = yield\n    outcome.get_result().outcome = "passed"'
  const PLUGIN = 'def pytest_pyfunc_call(pyfuncitem):\n    return True'

  needsPython('files that configure the test run are dropped before grading', async () => {
    const files: Record<string, string> = {
      'conftest.py': CONFTEST,
      'tests/conftest.py': PLUGIN,
      'tests/test_core.py': OLD_TESTS.replace('import add, multiply', 'import multiply'),
      'tests/test_signs.py': 'def test_negative():\n    pass',
      'tests/test_mine.py': 'def test_mine():\n    pass',
      'pytest.ini': '[pytest]\naddopts = -p calc.plugin',
      'pyproject.toml': '[tool.pytest.ini_options]\naddopts = "-p calc.plugin"',
      'setup.cfg': '[tool:pytest]\naddopts = -p calc.plugin',
      'tox.ini': '[pytest]\naddopts = -p calc.plugin',
      'sitecustomize.py': `import os\nprint("${ALL_PASSED}", flush=True)\nos._exit(0)`,
      'src/usercustomize.py': 'import os\nos._exit(0)',
      'evil.pth': 'import os; os._exit(0)',
      'pytest.py': `print("${ALL_PASSED}")`,
      '_pytest/__init__.py': '',
      'tests/unittest.py': 'class TestCase: pass',
      'json.py': 'import os\nos._exit(0)',
      'calc.egg-info/entry_points.txt': '[pytest11]\nevil = calc.plugin',
      'calc.egg-info/PKG-INFO': 'Name: calc\nVersion: 1',
      'tests/helper.py': 'import os\nos._exit(0)',
      'tests/data/expected.txt': '4',
      'pytest.toml': '[pytest]\naddopts = "-p calc.plugin"',
      Makefile: 'test:\n\ttrue',
      GNUmakefile: 'test:\n\ttrue',
      '.envrc': 'export PYTEST_ADDOPTS="-p calc.plugin"',
    }
    const harmless = { 'calc/plugin.py': PLUGIN, 'calc/types.py': 'X = 1', 'calc/unittest/more.py': 'X = 1' }
    const agent = Object.entries({ ...files, ...harmless }).map(([path, text]) => put(path, text))
    const { result } = await grade(`printf '' > .gitignore\n${agent.join('\n')}`)
    expect(reportOf(result)).toMatchObject({ resolved: false, forged_results: false, FAIL_TO_PASS: { success: [] } })
    expect(
      reportOf(result)
        .dropped_files!.map(({ path }) => path)
        .sort(),
    ).toEqual(Object.keys(files).sort())
  })

  needsPython('a link is graded as the plain file that it names, or dropped', async () => {
    const agent = `${FIX}; ln -s ../tests/test_signs.py calc/hidden.py; ln -s /tests/expected calc/out; ln -s core.py calc/same.py`
    const { result, evidence } = await grade(agent)
    expect(reportOf(result)).toMatchObject({
      resolved: true,
      dropped_files: [
        { path: 'calc/hidden.py', why: 'link' },
        { path: 'calc/out', why: 'link' },
      ],
    })
    expect(evidence.get('graded.diff')?.toString()).not.toContain('120000')
    expect(JSON.parse(String(evidence.get('dropped-files.json')))).toMatchObject({ count: 2 })
  })

  needsPython('a protected file that is listed in editable is graded as the agent left it', async () => {
    const agent = `${FIX}\n${put('Makefile', 'all:')}`
    expect(reportOf((await grade(agent)).result).dropped_files).toEqual([{ path: 'Makefile', why: 'protected' }])
    expect(reportOf((await grade(agent, { editable: ['Makefile'] })).result).dropped_files).toEqual([])
  })

  const cheats: Record<string, string> = {
    'printed lines that look like results': inTests(`${RAW}\nraw.write("${ALL_PASSED}\\n")\nraw.flush()`),
    'printed lines that look like results, at the very end': inTests(
      `${RAW}\nimport atexit, os\natexit.register(lambda: (raw.write("${ALL_PASSED}\\n"), raw.flush(), os._exit(0)))`,
    ),
    'printed lines that resemble no result': inTests(
      `${RAW}\nimport atexit, os\natexit.register(lambda: (raw.write("${ALL_PASSED.replaceAll('PASSED', 'PASSEDX')}\\n"), raw.flush(), os._exit(0)))`,
    ),
    'a folder of tests replaced by a link': 'rm -rf tests && ln -s /tmp tests',
  }
  for (const [name, agent] of Object.entries(cheats)) {
    needsPython(name, async () => {
      const { result } = await grade(agent)
      expect(reportOf(result)).toMatchObject({ resolved: false })
      expect(result.outcome_reward).toBe(0)
    })
  }

  const forgeries: Record<string, string> = {
    'printed results, then exit code 0': inTests(
      `${RAW}\nimport os\nraw.write("${ALL_PASSED}\\n")\nraw.flush()\nos._exit(0)`,
    ),
    'every report of pytest changed to passed': inTests(
      'import _pytest.reports as r\nold = r.TestReport.from_item_and_call.__func__\ndef new(cls, item, call):\n    report = old(cls, item, call)\n    report.outcome = "passed"\n    return report\nr.TestReport.from_item_and_call = classmethod(new)',
    ),
    'every test replaced by an empty function': inTests(
      'import _pytest.python as p\np.Function.runtest = lambda self: None\nimport _pytest.unittest as u\nu.TestCaseFunction.runtest = lambda self: None',
    ),
    'an exit code of 0 after the session': inTests(
      `import atexit, os, sys, gc\nimport _pytest.terminal as t\nt.TerminalReporter.summary_stats = lambda self: None\nt.TerminalReporter.short_test_summary = lambda self: self.write_line("${ALL_PASSED}")`,
    ),
  }
  for (const [name, agent] of Object.entries(forgeries)) {
    needsPython(`${name}: reported as forged results`, async () => {
      const { result } = await grade(agent)
      expect(reportOf(result)).toMatchObject({ resolved: false, forged_results: true })
      expect(result).toMatchObject({ outcome_reward: 0, components: { fail_to_pass: 0, pass_to_pass: 0 } })
    })
  }

  needsPython('assertions replaced by empty functions: reported as forged results', async () => {
    const patch = repository.patchOf({ 'tests/test_core.py': NEW_TESTS })
    const instance = {
      ...row,
      test_patch: patch,
      FAIL_TO_PASS: ['tests/test_core.py::CalcTest::test_add'],
      PASS_TO_PASS: [],
    }
    const agent = inTests('import unittest\nunittest.TestCase.assertEqual = lambda *_: None')
    expect(reportOf((await grade(agent, { instance })).result)).toMatchObject({ resolved: false, forged_results: true })
    expect((await grade(agent, { instance, canary: 'off' })).result.outcome_reward).toBe(1)
  })

  needsPython('dropped files do not change the reward of a correct fix', async () => {
    const agent = `${FIX}\n${put('conftest.py', CONFTEST)}${put('tests/test_mine.py', 'def test_x():\n    assert 0')}`
    const { result } = await grade(agent)
    expect(result.outcome_reward).toBe(1)
    expect(reportOf(result).dropped_files).toEqual([
      { path: 'conftest.py', why: 'protected' },
      { path: 'tests/test_mine.py', why: 'protected' },
    ])
  })

  needsPython('a protected file is graded as the agent left it if the gold patch changes it too', async () => {
    const gold = repository.patchOf({ 'calc/core.py': FIXED, 'conftest.py': 'X = 1\n' })
    const agent = `${FIX}\n${put('conftest.py', 'X = 2')}`
    const { result } = await grade(agent, { instance: { ...row, patch: gold } })
    expect(reportOf(result)).toMatchObject({ resolved: true, dropped_files: [] })
  })
})

describe('a patch that makes the tests look broken', () => {
  const dodges: Record<string, string> = {
    'with the exit code of a missing program': 'import os\nos._exit(127)',
    'by killing the shell that runs them': 'import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\nos._exit(0)',
    'by printing nothing': 'import os\nos._exit(0)',
  }
  for (const [name, code] of Object.entries(dodges)) {
    needsPython(`${name} gets reward 0 and no other attempt`, async () => {
      const { result, graders } = await grade(inTests(code))
      expect(result.outcome_reward).toBe(0)
      expect(reportOf(result)).toMatchObject({ resolved: false, control_run: true })
      expect(graders).toBe(2)
    })
  }

  needsPython('by never ending gets reward 0', async () => {
    const { result } = await grade(inTests('import time\ntime.sleep(1000)'), { test_timeout_seconds: 3 })
    expect(reportOf(result)).toMatchObject({ test_timeout: true, resolved: false })
    expect(result.outcome_reward).toBe(0)
  })

  needsPython('by printing too much output is not resolved', async () => {
    const { result } = await grade(inTests(`${RAW}\nfor _ in range(40):\n    raw.write("x" * 1000000)`))
    expect(reportOf(result)).toMatchObject({ output_too_large: true, resolved: false })
  })
})

needsPython(
  'if the canary test cannot run, the grade relies on the exit code, and the report has canary: unsupported',
  async () => {
    const command = 'pytest -rA -k "add or negative or multiply"'
    const { result, graders } = await grade(FIX, { test_cmd: command })
    expect(reportOf(result)).toMatchObject({ resolved: true, canary: 'unsupported', exit_code: 0, control_run: true })
    expect(graders).toBe(2)
    await expect(grade(FIX, { test_cmd: command, canary: 'require' })).rejects.toMatchObject({
      code: 'evaluator.crashed',
    })
  },
)

needsPython('a patch that recognizes the canary test can still forge results, as documented', async () => {
  const agent = inTests(
    'import re\nimport _pytest.reports as r\nold = r.TestReport.from_item_and_call.__func__\ndef new(cls, item, call):\n    report = old(cls, item, call)\n    if not re.search("[a-z]{14}", item.name):\n        report.outcome = "passed"\n    return report\nr.TestReport.from_item_and_call = classmethod(new)',
  )
  expect((await grade(agent)).result.outcome_reward).toBe(1)
})
