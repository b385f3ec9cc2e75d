import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { describeGaps, toGapNotes } from './gaps.ts'
import type { Finding } from './log.ts'
import { isReported, nearestNames, toStatusMap } from './report.ts'
import type { TestRun } from './run-tests.ts'
import { decidingGaps, readRun } from './verdict.ts'

const TESTS = {
  FAIL_TO_PASS: ['tests/test_core.py::CalcTest::test_add'],
  PASS_TO_PASS: ['tests/test_core.py::test_old'],
}

function read(findings: Finding[], tests = TESTS) {
  const run = { findings, doubts: new Set<string>(), output: Buffer.alloc(0), exitCode: 0 } as unknown as TestRun
  return readRun(run, [], tests, 'pass_and_fail')
}

describe('decidingGaps()', () => {
  test('lists required tests that are missing in the log if no other test failed', () => {
    const reading = read([
      ['test_add (tests.test_core.CalcTest)', 'PASSED'],
      ['tests/test_core.py::test_old', 'PASSED'],
    ])
    expect(decidingGaps(reading)).toEqual(TESTS.FAIL_TO_PASS)
  })

  test('is empty if a required test is reported as failed', () => {
    const reading = read([['tests/test_core.py::test_old', 'FAILED']])
    expect(reading.notReported).toEqual(TESTS.FAIL_TO_PASS)
    expect(decidingGaps(reading)).toEqual([])
  })

  test('is empty when the runner could not load the file of the missing test', () => {
    expect(decidingGaps(read([['tests/test_core.py', 'ERROR']]))).toEqual([])
  })

  test('is empty when every required test is reported, or none ran', () => {
    expect(decidingGaps(read([...TESTS.FAIL_TO_PASS, ...TESTS.PASS_TO_PASS].map((name) => [name, 'PASSED'])))).toEqual(
      [],
    )
    expect(decidingGaps(read([]))).toEqual([])
  })
})

describe('nearestNames()', () => {
  const reported = toStatusMap([
    ['test_add (tests.test_core.CalcTest)', 'PASSED'],
    ['test_multiply (tests.test_core.CalcTest)', 'PASSED'],
    ['test_colour (web.test_paint.PaintTest)', 'PASSED'],
  ])

  test('finds the same test under the name of another runner', () => {
    expect(nearestNames('tests/test_core.py::CalcTest::test_add', reported)[0]).toBe(
      'test_add (tests.test_core.CalcTest)',
    )
  })

  test('returns nothing if no name is similar', () => {
    expect(nearestNames('TestSomethingElse/quite/different', reported)).toEqual([])
  })

  test('returns only reported names, and at most the requested number', () => {
    const names = fc.uniqueArray(fc.string({ minLength: 1, maxLength: 30 }), { maxLength: 20 })
    fc.assert(
      fc.property(names, fc.string(), fc.integer({ min: 0, max: 5 }), (all, wanted, most) => {
        const statuses = toStatusMap(all.map((name) => [name, 'PASSED']))
        const near = nearestNames(wanted, statuses, most)
        expect(near.length).toBeLessThanOrEqual(most)
        expect(near.every((name) => statuses.has(name))).toBe(true)
      }),
    )
  })
})

test('isReported() accepts a name that a dataset truncated within its parameters', () => {
  const statuses = toStatusMap([['t.py::test_a[one-two]', 'PASSED']])
  expect(isReported('t.py::test_a[one', statuses)).toBe(true)
  expect(isReported('t.py::test_a[two', statuses)).toBe(false)
})

test('the report and the error name the missing test and similar reported tests', () => {
  const reading = read([
    ['test_add (tests.test_core.CalcTest)', 'PASSED'],
    ['tests/test_core.py::test_old', 'PASSED'],
  ])
  expect(toGapNotes(reading)).toMatchObject({
    not_reported_count: 1,
    not_reported: [
      { test: TESTS.FAIL_TO_PASS[0], nearest: ['test_add (tests.test_core.CalcTest)', expect.anything()] },
    ],
    warning: expect.stringContaining('1 test') as unknown,
  })
  expect(describeGaps('tiny-1', TESTS.FAIL_TO_PASS, reading)).toMatch(
    /Not reported: 1 test of tiny-1.*test_add \(tests/,
  )
})
