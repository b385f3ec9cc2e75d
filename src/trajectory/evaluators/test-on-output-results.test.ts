import { describe, expect, test } from 'vitest'
import { compareTests, parseTestOutput, type TestStatus } from './test-on-output-results.ts'

/** Output of pytest 8 with -rA -v, without the middle. */
const PYTEST = `
tests/test_a.py::test_ok PASSED                                          [ 11%]
tests/test_a.py::test_bad FAILED                                         [ 22%]
tests/test_a.py::test_p[a b] PASSED                                      [ 33%]
tests/test_a.py::test_s SKIPPED (later)                                  [ 66%]
tests/test_a.py::test_x XFAIL                                            [ 77%]
tests/test_a.py::TestA::test_ok PASSED                                   [ 88%]
tests/test_a.py::test_t PASSED                                           [100%]
tests/test_a.py::test_t ERROR                                            [100%]
----------------------------- Captured stdout call -----------------------------
PASSED tests/test_a.py::test_bad
=========================== short test summary info ============================
PASSED tests/test_a.py::test_ok
PASSED tests/test_a.py::test_p[a b]
PASSED tests/test_a.py::test_p[e]
PASSED tests/test_a.py::TestA::test_ok
PASSED tests/test_a.py::test_t
SKIPPED [1] tests/test_a.py:6: later
XFAIL tests/test_a.py::test_x
ERROR tests/test_a.py::test_t - RuntimeError: teardown
FAILED tests/test_a.py::test_bad - AssertionError: a - b
FAILED tests/test_a.py::test_p[c - d] - AssertionError: assert 'c - d' != 'c ...
========== 2 failed, 5 passed, 1 skipped, 1 xfailed, 1 error in 0.16s ==========
`

describe('parseTestOutput()', () => {
  test('parses the output of pytest by full ids', () => {
    expect(Object.fromEntries(parseTestOutput(PYTEST, []))).toEqual({
      'tests/test_a.py::test_ok': 'PASSED',
      'tests/test_a.py::test_bad': 'FAILED',
      'tests/test_a.py::test_p[a b]': 'PASSED',
      'tests/test_a.py::test_p[e]': 'PASSED',
      'tests/test_a.py::test_p[c - d]': 'FAILED',
      'tests/test_a.py::test_s': 'SKIPPED',
      'tests/test_a.py::test_x': 'XFAIL',
      'tests/test_a.py::TestA::test_ok': 'PASSED',
      'tests/test_a.py::test_t': 'ERROR',
    })
  })

  test('returns the worse of two reports, in either order', () => {
    const [pass, fail] = ['PASSED a.py::t', 'FAILED a.py::t - assert']
    expect(parseTestOutput(`${pass}\n${fail}`, []).get('a.py::t')).toBe('FAILED')
    expect(parseTestOutput(`${fail}\n${pass}`, []).get('a.py::t')).toBe('FAILED')
  })

  test('parses colours, workers, and ids that contain the separator after an id', () => {
    const output =
      '\u001B[32mPASSED\u001B[0m a.py::\u001B[1mt\u001B[0m\n[gw1] [ 50%] PASSED a.py::u\nFAILED a.py::v[ - [] - why'
    const found = parseTestOutput(output, ['a.py::v[ - []'])
    expect([...found]).toEqual([
      ['a.py::t', 'PASSED'],
      ['a.py::u', 'PASSED'],
      ['a.py::v[ - []', 'FAILED'],
    ])
  })

  test('ignores other lines', () => {
    const output = ' PASSED a.py::t\nPASSEDa.py::t\nAll tests PASSED\nE   PASSED a.py::t\nthe FAILED one'
    expect(parseTestOutput(output, []).size).toBe(0)
  })
})

describe('compareTests()', () => {
  const found = (tests: Record<string, TestStatus>) => new Map(Object.entries(tests))

  test('reports mismatches of expected tests and lists unexpected tests', () => {
    const tests = found({ 'a.py::t': 'PASSED', 'a.py::u': 'FAILED' })
    expect(compareTests({ 'a.py::t': 'PASSED' }, tests)).toEqual({ mismatches: [], unexpected: ['a.py::u'] })
    expect(compareTests({ 'a.py::u': 'PASSED', 'b.py::t': 'PASSED' }, tests).mismatches).toEqual([
      { id: 'a.py::u', expected: 'PASSED', found: 'FAILED' },
      { id: 'b.py::t', expected: 'PASSED' },
    ])
  })

  test('a short name requires every test of that name, not just one', () => {
    const tests = found({ 'a.py::A::t': 'PASSED', 'b.py::A::t': 'FAILED', 'c.py::t': 'PASSED' })
    expect(compareTests({ t: 'PASSED' }, tests).mismatches).toEqual([])
    expect(compareTests({ 'A.t': 'PASSED' }, tests).mismatches).toEqual([
      { id: 'b.py::A::t', expected: 'PASSED', found: 'FAILED' },
    ])
    expect(compareTests({ missing: 'PASSED' }, tests).mismatches).toEqual([{ id: 'missing', expected: 'PASSED' }])
  })
})
