import { spawnSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import fc from 'fast-check'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { findLogParser, logParserNames } from '../../src/trajectory/evaluators/swebench/log-parsers.ts'
import {
  hasFailed,
  isResolved,
  reportTests,
  saysThatTestsRan,
  toStatusMap,
  type EvalType,
} from '../../src/trajectory/evaluators/swebench/report.ts'
import { pythonEnvironment } from '../support/python-environment.ts'

const { python, install } = pythonEnvironment('swebench', 'swebench-requirements.txt', ['--no-deps'])
const script = fileURLToPath(new URL('../support/swebench_grading.py', import.meta.url))

let missing: string | undefined
let dir: string
beforeAll(() => {
  missing = install()
  dir = mkdtempSync(join(tmpdir(), 'polar-swebench-'))
}, 300_000)
afterAll(() => rmSync(dir, { recursive: true, force: true }))

interface Case {
  parser: string
  evalType: EvalType
  FAIL_TO_PASS: string[]
  PASS_TO_PASS: string[]
  log: string
  exitCode: number | null
}
interface Theirs {
  error?: string
  statuses: [string, string][]
  report: { resolved: boolean; tests_status?: { FAIL_TO_PASS: object; PASS_TO_PASS: object } }
}

/** Our parsers without an equivalent in the package. */
const ONLY_OURS = new Set(['unittest', 'mocha', 'gotest_json', 'pytest_pydantic'])
const PARSERS = logParserNames.filter((name) => !ONLY_OURS.has(name))

function gradeWithPackage(cases: readonly Case[]): { parsers: string[]; results: Theirs[] } {
  const input = JSON.stringify(cases.map((each) => ({ ...each, parser: `parse_log_${each.parser}` })))
  const run = spawnSync(python, [script], { input, encoding: 'utf8', maxBuffer: 1024 ** 3 })
  expect(run.status, run.stderr).toBe(0)
  return JSON.parse(run.stdout) as { parsers: string[]; results: Theirs[] }
}

/** Grades by the rules of the package alone, without our additional checks. */
function gradeWithUs({ parser, log, evalType, exitCode, ...tests }: Case) {
  // The package parses the text between two marker lines.
  const statuses = toStatusMap(findLogParser(parser)!(`\n${log}\n`))
  const report = reportTests(statuses, tests, evalType)
  const isKnown = statuses.size > 0 || saysThatTestsRan(log)
  const isBelievable = !exitCode || statuses.size === 0 || [...statuses.values()].some(hasFailed)
  return {
    statuses,
    report,
    isGraded: isKnown && isBelievable,
    resolved: isKnown && isBelievable && isResolved(report),
  }
}

function compare(cases: readonly Case[]): number {
  const { results } = gradeWithPackage(cases)
  let compared = 0
  for (const [index, theirs] of results.entries()) {
    const one = cases[index]!
    if (theirs.error !== undefined) continue
    const ours = gradeWithUs(one)
    const about = `${one.parser} of ${JSON.stringify(one.log)}`
    const alone = toStatusMap(findLogParser(one.parser)!(one.log))
    expect(Object.fromEntries(alone), about).toEqual(Object.fromEntries(theirs.statuses))
    expect(ours.isGraded, about).toBe(theirs.report.tests_status !== undefined)
    if (theirs.report.tests_status !== undefined) {
      const { FAIL_TO_PASS, PASS_TO_PASS } = theirs.report.tests_status
      expect(ours.report, about).toEqual({ FAIL_TO_PASS, PASS_TO_PASS })
    }
    // A test in neither list counts as resolved for the package, and for us without the additional checks.
    expect(ours.resolved, about).toBe(theirs.report.resolved)
    compared += 1
  }
  return compared
}

const PROJECT = {
  'test_all.py': `import sys, unittest, warnings
import pytest


def test_passes():
    print("PASSED test_all.py::test_fails")
    print("test_x (a.B) ... ok")


def test_fails():
    assert "a - b" == "c - d", "message - with dash"


@pytest.mark.skip(reason="not now")
def test_skipped():
    pass


@pytest.mark.xfail
def test_xfails():
    assert 0


@pytest.mark.xfail
def test_xpasses():
    pass


@pytest.fixture
def broken():
    raise RuntimeError("no")


def test_errors(broken):
    pass


@pytest.fixture
def breaks_later():
    yield
    raise RuntimeError("later")


def test_teardown(breaks_later):
    pass


@pytest.mark.parametrize("value", ["plain", "a b", "/tmp/x/y", "//host/x", "/a*/b", "log(photon", "[nested]", "ü - é", ""])
def test_parameter(value):
    assert value != "a b"


class TestGroup(unittest.TestCase):
    """With a text."""

    def test_one(self):
        """First line.

        More."""

    def test_two(self):
        print("noise", file=sys.stderr)
        self.fail()

    @unittest.skip("no")
    def test_three(self):
        pass

    @unittest.expectedFailure
    def test_four(self):
        self.fail()

    def test_five(self):
        raise ValueError("x")

    def test_six(self):
        for i in range(3):
            with self.subTest(i=i):
                self.assertEqual(i, 0)
`,
  'test_broken.py': 'import nothing_like_this\n',
  'all.test.mjs': `import test from 'node:test'
import assert from 'node:assert'
test('passes', () => {})
test('fails # now', () => assert.equal(1, 2))
test('skipped', { skip: true }, () => {})
test('todo', { todo: true }, () => {})
test('outer', async (t) => { await t.test('inner', () => {}); await t.test('inner fails', () => assert.ok(false)) })
`,
  'go.mod': 'module example.org/x\n\ngo 1.20\n',
  'x_test.go': `package x

import "testing"

func TestPasses(t *testing.T) {}
func TestFails(t *testing.T) { t.Errorf("--- PASS: TestFails (0.00s)") }
func TestSkips(t *testing.T) { t.Skip() }
func TestNested(t *testing.T) {
	t.Run("in (brackets)", func(t *testing.T) {})
	t.Run("b c", func(t *testing.T) { t.Fatal() })
}
`,
}

/** Returns logs of real test runners. */
function realLogs(): { parsers: string[]; log: string }[] {
  for (const [path, text] of Object.entries(PROJECT)) {
    mkdirSync(dirname(join(dir, path)), { recursive: true })
    writeFileSync(join(dir, path), text)
  }
  const pytest = ['pytest', 'pytest_options', 'pytest_v2', 'seaborn', 'matplotlib']
  const runs: [string[], string[]][] = [
    [pytest, [python, '-m', 'pytest', '-rA', 'test_all.py']],
    [pytest, [python, '-m', 'pytest', '-rA', '--continue-on-collection-errors']],
    [pytest, [python, '-m', 'pytest', '-rA', '--tb=no', '-p', 'no:cacheprovider', '--no-header']],
    [pytest, [python, '-m', 'pytest', '-rA', '-vv', '-o', 'console_output_style=classic', 'test_all.py']],
    [pytest, [python, '-m', 'pytest', '-rA', '--color=yes', 'test_all.py']],
    [pytest, [python, '-m', 'pytest', '-rA', '-n', '2', '-v', 'test_all.py']],
    [pytest, [python, '-m', 'pytest', '-rA', 'test_all.py', '--tb=long', '-s']],
    [['django'], [python, '-m', 'unittest', '-v', 'test_all', 'test_broken']],
    [['tap'], [process.execPath, '--test', '--test-reporter=tap', 'all.test.mjs']],
    [
      ['highlightjs', 'jest', 'vitest'],
      [process.execPath, '--test', '--test-reporter=spec', 'all.test.mjs'],
    ],
    [['gotest'], ['go', 'test', '-v', './...']],
  ]
  return runs.flatMap(([parsers, [program = '', ...args]]) => {
    const env = { ...process.env, NODE_TEST_CONTEXT: undefined, GOFLAGS: '-mod=mod' }
    const run = spawnSync(program, args, { cwd: dir, encoding: 'utf8', env })
    if (run.error !== undefined) console.log(`${program} is not here: ${run.error.message}`)
    const log = `${run.stdout ?? ''}${run.stderr ?? ''}`
    return log === '' ? [] : [{ parsers, log: log.replaceAll(/\r\n?/g, '\n') }]
  })
}

/** Selects tests of the log, for some seeds with a truncated name or an unknown test. */
function pick(log: string, parser: string, seed: number): Pick<Case, 'FAIL_TO_PASS' | 'PASS_TO_PASS'> {
  const statuses = toStatusMap(findLogParser(parser)!(log))
  const names = [...statuses.keys()]
  const good = names.filter((name) => !hasFailed(statuses.get(name)))
  const from = seed % 3 === 0 ? names : good
  const cut = names.find((name) => name.includes('['))?.replace(/\[(.).*$/s, '[$1')
  return {
    FAIL_TO_PASS: from.filter((_, index) => (index + seed) % 2 === 0).slice(0, 12),
    PASS_TO_PASS: [
      ...from.filter((_, index) => (index + seed) % 2 === 1).slice(0, 12),
      ...(cut !== undefined && seed % 5 === 1 ? [cut] : []),
      ...(seed % 7 === 2 ? ['no::such'] : []),
    ],
  }
}

test('real logs are parsed and graded as by the swebench package', ({ skip }) => {
  if (missing !== undefined) skip(`the swebench package cannot be installed here: ${missing}`)
  const logs = realLogs()
  expect(logs.length).toBeGreaterThanOrEqual(9)
  const cases = logs.flatMap(({ parsers, log }) =>
    parsers.flatMap((parser) =>
      [0, 1, 2].map((seed): Case => {
        const exitCode = [null, 0, 1][seed]!
        return { parser, evalType: 'pass_and_fail', ...pick(log, parser, seed), log, exitCode }
      }),
    ),
  )
  expect(compare(cases)).toBe(cases.length)
  const [first] = logs
  const statuses = toStatusMap(findLogParser('pytest')!(first!.log))
  expect(new Set(statuses.values())).toEqual(new Set(['PASSED', 'FAILED', 'ERROR', 'XFAIL']))
}, 240_000)

const NAMES = [
  't.py::a',
  'a/b_test.py::C::d[x y]',
  'p[/usr/x]',
  'p[//y]',
  'test_z',
  'MouseButton.LEFT',
  'q[1',
  '[100%]',
  '[3]',
  'ü é',
]
const SIGNS = ['✓', '✕', '○', '×', '↓', '✔', '✖', 'ok 1', 'not ok 2', '1)', '- ', '*']
const WORDS = [
  'PASSED',
  'FAILED',
  'ERROR',
  'SKIPPED',
  'XFAIL',
  'XPASS',
  ' - ',
  ' ... ',
  'ok',
  'OK',
  'FAIL',
  'ERROR:',
  'FAIL:',
  'skipped',
  'E',
  'F',
  '--- PASS:',
  '--- FAIL:',
  '--- SKIP:',
  '(0.01s)',
  '(12 ms)',
  '(3ms)',
  '(1.2 s)',
  '12ms',
  '[skipped]',
  'PASS',
  '.py:',
  '____',
  'Starting browser',
  'SUMMARY:',
  '5 passing',
  'Executed 3 of 3',
  '[PASSED]',

  '--version is equivalent to version',
  'Testing against Django installed in x silenced).',
  'Internal Server Error: /x/',
  'System check identified no issues (0 silenced)',
  'Applying sites.0002_alter_domain_unique...test_no_migrations',

  '\u001b[32m',
  '[31m',
  '\t',
  '\u00a0',
  '\u2028',
  '\u0085',
  '\ufeff',
  '  ',
  '    ',
  '',
  '# tests 3',
  "': ok",
  '2 specs, 0 failures',
]
const piece = fc.oneof(
  { weight: 3, arbitrary: fc.constantFrom(...WORDS) },
  { weight: 3, arbitrary: fc.constantFrom(...NAMES) },
  { weight: 1, arbitrary: fc.constantFrom(...SIGNS) },
  { weight: 1, arbitrary: fc.string({ maxLength: 6 }) },
)
const joined = fc.tuple(fc.array(piece, { maxLength: 5 }), fc.constantFrom(' ', ' ', ' ', '', '  '))
const line = fc.oneof(
  { weight: 2, arbitrary: joined.map(([parts, blank]) => parts.join(blank)) },
  {
    weight: 1,
    arbitrary: fc
      .tuple(fc.constantFrom('PASSED', 'FAILED', 'ERROR', 'SKIPPED'), fc.constantFrom(...NAMES))
      .map((parts) => parts.join(' ')),
  },
  {
    weight: 1,
    arbitrary: fc
      .tuple(fc.constantFrom(...NAMES), fc.constantFrom('ok', 'FAIL', 'ERROR', "skipped 'x'", 'x\nok'))
      .map((parts) => parts.join(' ... ')),
  },
  {
    weight: 1,
    arbitrary: fc
      .tuple(
        fc.constantFrom('', '  ', '      '),
        fc.constantFrom(...SIGNS),
        fc.constantFrom(...NAMES),
        fc.constantFrom('', ' (3ms)', ' (3 ms)', ' 3ms', ' (1.5 s)'),
      )
      .map(([indent, sign, name, time]) => `${indent}${sign} ${name}${time}`),
  },
)
/** Lines that only one runner writes. */
const special = fc
  .tuple(
    fc.constantFrom(...NAMES),
    fc.constantFrom('PASS', 'FAIL', 'SKIP'),
    fc.constantFrom('', ' (1.5 s)', ' (3ms)', ' (2s) (1ms)', ' '),
    fc.nat(6),
  )
  .map(
    ([name, word, time, form]) =>
      [
        `[${word}ED] ${name}`,
        `--- ${word}: ${name} (0.01s)`,
        `${word} ${name}${time}`,
        `____ ${name}.py:test_q _____`,
        `test_${name} ${word === 'PASS' ? 'ok' : word[0]}`,
        `1) ${name}`,
        `Starting browser\n  Suite\n    ✔ ${name}\n    ✖ ${word}\n  Other`,
      ][form]!,
  )
const randomCase = fc.record({
  parser: fc.constantFrom(...PARSERS),
  evalType: fc.constantFrom<EvalType[]>('pass_and_fail', 'pass_and_fail', 'fail_only'),
  log: fc
    .array(fc.oneof({ weight: 3, arbitrary: line }, { weight: 1, arbitrary: special }), { maxLength: 12 })
    .map((lines) => lines.join('\n').replaceAll('\r', '')),
  exitCode: fc.constantFrom(null, 0, 1),
  seed: fc.nat(1000),
})

test('random logs are parsed and graded as by the swebench package', ({ skip }) => {
  if (missing !== undefined) skip(`the swebench package cannot be installed here: ${missing}`)
  const cases = fc.sample(randomCase, { numRuns: 12_000, seed: 6 }).map(({ seed, ...rest }): Case => {
    return { ...rest, ...pick(rest.log, rest.parser, seed) }
  })
  expect(compare(cases)).toBeGreaterThan(11_000)
  for (const parser of PARSERS) {
    const withStatuses = cases.filter((each) => each.parser === parser && gradeWithUs(each).statuses.size > 0)
    expect(withStatuses.length, parser).toBeGreaterThan(30)
  }
}, 240_000)

test('every parser that the package has too is compared', ({ skip }) => {
  if (missing !== undefined) skip(`the swebench package cannot be installed here: ${missing}`)
  const { parsers } = gradeWithPackage([])
  expect(parsers).toEqual(expect.arrayContaining(PARSERS.map((name) => `parse_log_${name}`)))
})
