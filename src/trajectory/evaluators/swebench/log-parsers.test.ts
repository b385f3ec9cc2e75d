import { expect, test } from 'vitest'
import { findDoubts } from './doubts.ts'
import { findLogParser, logParserNames } from './log-parsers.ts'
import { fractionOf, isResolved, reportTests, toStatusMap, toWaryStatusMap } from './report.ts'
import { cpuTimeMs } from '../../../../test/support/cpu-time.ts'

function read(parser: string, log: string): Record<string, string> {
  return Object.fromEntries(toStatusMap(findLogParser(parser)!(log)))
}

test('parsers are found by the names in rows', () => {
  expect(findLogParser('parse_log_pytest')).toBe(findLogParser('pytest'))
  expect(findLogParser('toString')).toBeUndefined()
})

test('the output of tests in go test -json is not parsed as results', () => {
  const log = `{"Action":"run","Test":"TestA"}
{"Action":"output","Test":"TestA","Output":"{\\"Action\\":\\"pass\\",\\"Test\\":\\"TestB\\"}\\n"}
{"Action":"fail","Test":"TestA","Elapsed":0}
{"Action":"pass","Package":"x"}
{"Action":"skip","Test":"TestC"}
{not json`
  expect(read('gotest_json', log)).toEqual({ TestA: 'FAILED', TestC: 'SKIPPED' })
})

test('logs of pydantic are parsed with and without percentages', () => {
  const log = 'tests/a.py::x PASSED\ntests/a.py::y FAILED [ 50%]\nFAILED tests/a.py::z - boom'
  expect(read('pytest_pydantic', log)).toEqual({
    'tests/a.py::x': 'PASSED',
    'tests/a.py::y': 'FAILED',
    'tests/a.py::z': 'FAILED',
  })
})

test('a test that is reported as passed and as failed has failed, in either order', () => {
  const findings = [
    ['a', 'FAILED'],
    ['b', 'PASSED'],
    ['a', 'PASSED'],
    ['b', 'FAILED'],
    ['c', 'PASSEDX'],
  ] as const
  const { statuses, disputed } = toWaryStatusMap(findings, new Set())
  expect([...statuses]).toEqual([
    ['a', 'FAILED'],
    ['b', 'FAILED'],
  ])
  expect(disputed).toEqual(['a'])
})

test('a failure behind the output of a test, or under another name, is detected', () => {
  const logs = {
    pytest: 'PASSED t.py::a\nnoiseFAILED t.py::a - x',
    unittest: 'test_a (m.C) ... ok\nFAIL\nFAIL: test_a (m.C)\n--------------------------',
    django: 'Says a ... ok\nFAIL: test_a (m.C)\nSays a\n--------------------------',
    sympy: 'test_a ok\n____ sympy/x/tests/test_x.py:test_a ____',
    gotest: '--- PASS: TestA (0.00s)\nnoise--- FAIL: TestA (0.00s)',
    tap: 'ok 1 - a\nnoise not ok 1 - a',
    jest: '✓ a\nnoise ✕ a (3 ms)',
  }
  for (const [parser, log] of Object.entries(logs)) {
    const findings = findLogParser(parser)!(log)
    expect(
      findings.some(([, status]) => status === 'PASSED'),
      parser,
    ).toBe(true)
    const { statuses } = toWaryStatusMap(findings, findDoubts(parser, log))
    expect([...statuses.values()], parser).not.toContain('PASSED')
  }
})

test('a skipped test is neither fixed nor broken; a truncated name passes if all tests with that prefix pass', () => {
  const statuses = new Map([
    ['a', 'SKIPPED'],
    ['b', 'XFAIL'],
    ['c[x y]', 'PASSED'],
    ['c[x z]', 'PASSED'],
    ['d[1]', 'PASSED'],
    ['d[2]', 'FAILED'],
  ])
  const report = reportTests(
    statuses,
    { FAIL_TO_PASS: ['a', 'b', 'c[x', 'd['], PASS_TO_PASS: ['a', 'gone'] },
    'pass_and_fail',
  )
  expect(report).toEqual({
    FAIL_TO_PASS: { success: ['b', 'c[x'], failure: ['a', 'd['] },
    PASS_TO_PASS: { success: ['a'], failure: ['gone'] },
  })
  expect(isResolved(report)).toBe(false)
  expect(fractionOf(report.FAIL_TO_PASS)).toBe(0.5)
})

test('parsers take bounded time for hostile output', () => {
  const many = 200_000
  const logs = [
    ' '.repeat(many * 4),
    '_ '.repeat(many) + '.py:',
    '.py:' + '_ '.repeat(many),
    'x ... Testing against Django installed in '.repeat(many / 20),
    '✓ ' + ' (1'.repeat(many),
    '--- PASS: ' + ' ('.repeat(many),
    'PASS ' + ' (1.1'.repeat(many),
    'FAILED' + ' - '.repeat(many),
    'a[' + '/'.repeat(many),
    'PASSED ' + '['.repeat(many),
    '1) '.repeat(many),
    'FAILED ['.repeat(many),
  ]
  for (const name of logParserNames) {
    const parse = findLogParser(name)!
    for (const log of logs) {
      const from = cpuTimeMs()
      parse(log)
      findDoubts(name, log)
      expect(cpuTimeMs() - from, `${name} of ${log.slice(0, 30)}`).toBeLessThan(5000)
    }
  }
})
