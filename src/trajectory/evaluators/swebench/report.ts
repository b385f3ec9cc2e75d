import { ERROR, FAILED, PASSED, SKIPPED, XFAIL, isStatus, type Finding } from './log.ts'

export type StatusMap = ReadonlyMap<string, string>

export interface TestLists {
  FAIL_TO_PASS: readonly string[]
  PASS_TO_PASS: readonly string[]
}

/** `fail_only`: the runner reports only failed tests, so all others have passed. */
export type EvalType = 'pass_and_fail' | 'fail_only'

interface Outcome {
  success: string[]
  failure: string[]
}

export interface TestsReport {
  FAIL_TO_PASS: Outcome
  PASS_TO_PASS: Outcome
}

/** Returns the last status of each test. */
export function toStatusMap(findings: readonly Finding[]): Map<string, string> {
  return new Map(findings)
}

/**
 * Like `toStatusMap`, but a test that was ever reported as failed, or that is in `doubts`, has not passed: a runner reports a
 * test once, so a second report is forged. Ignores words that only begin like a status.
 */
export function toWaryStatusMap(
  all: readonly Finding[],
  doubts: ReadonlySet<string>,
): { statuses: Map<string, string>; disputed: string[] } {
  const findings = all.filter(([, status]) => isStatus(status))
  const statuses = toStatusMap(findings)
  const failed = new Set(findings.filter(([, status]) => hasFailed(status)).map(([test]) => test))
  const disputed = [...statuses.keys()].filter(
    (test) => hasPassed(statuses.get(test)) && (failed.has(test) || doubts.has(test)),
  )
  for (const test of disputed) statuses.set(test, FAILED)
  return { statuses, disputed }
}

/** Applies the rules of the swebench package, version 5: a skipped test is neither fixed nor broken. */
export function reportTests(statuses: StatusMap, tests: TestLists, evalType: EvalType): TestsReport {
  return {
    FAIL_TO_PASS: divide(tests.FAIL_TO_PASS, (test) =>
      evalType === 'fail_only' ? statuses.get(test) !== FAILED : judge(test, statuses, hasPassed),
    ),
    PASS_TO_PASS: divide(tests.PASS_TO_PASS, (test) =>
      evalType === 'fail_only'
        ? statuses.get(test) !== FAILED
        : judge(test, statuses, (status) => hasPassed(status) || status === SKIPPED),
    ),
  }
}

/** Returns the fraction of successes, from 0 to 1; 1 for an empty list. */
export function fractionOf({ success, failure }: Outcome): number {
  const total = success.length + failure.length
  return total === 0 ? 1 : success.length / total
}

export function isResolved(report: TestsReport): boolean {
  return report.FAIL_TO_PASS.failure.length === 0 && report.PASS_TO_PASS.failure.length === 0
}

export function hasPassed(status: string | undefined): boolean {
  return status === PASSED || status === XFAIL
}

export function hasFailed(status: string | undefined): boolean {
  return status === FAILED || status === ERROR
}

/** Whether a log without results shows that tests ran, for runners that report only failures. */
export function saysThatTestsRan(log: string): boolean {
  return log.split('\n').some((line) => RAN.some((pattern) => pattern.test(line)))
}

const RAN = [
  /Executed [1-9]\d* of \d+/,
  /TOTAL: [1-9]\d* (?:SUCCESS|FAILED)/,
  /[1-9]\d{0,9} passing/,
  /Tests:\s{1,20}[1-9]/,
  /Test Suites:\s{1,20}(?:\d{1,9} \w{1,20}, ){0,9}[1-9]\d* total/,
  /^# tests [1-9]/,
  /[1-9]\d{0,9} specs?, \d+ failures?/,
  /': ok$/,
]

/** Undefined for a word that only looks like a status. */
type Verdict = boolean | undefined

function judge(test: string, statuses: StatusMap, isGood: (status: string | undefined) => boolean): Verdict {
  const status = statuses.get(resolveName(test, statuses) ?? '')
  if (status === undefined) return false
  if (isGood(status)) return true
  return hasFailed(status) || status === SKIPPED ? false : undefined
}

/**
 * Returns the reported name of a test. Datasets truncate some names within their parameters; such a name matches all reported
 * names that begin with it, if their statuses agree.
 */
function resolveName(test: string, statuses: StatusMap): string | undefined {
  if (statuses.has(test)) return test
  if (!isCutShort(test)) return undefined
  const candidates = [...statuses.keys()].filter((name) => name.startsWith(test))
  const verdicts = new Set(candidates.map((name) => hasPassed(statuses.get(name))))
  return verdicts.size === 1 ? candidates[0] : undefined
}

/** Whether a test name is truncated within its parameters. */
function isCutShort(test: string): boolean {
  return test.split('[').length > test.split(']').length
}

/** Returns required tests that the log does not report. Empty for `fail_only`, where unreported tests have passed. */
export function notReported(statuses: StatusMap, tests: TestLists, evalType: EvalType): string[] {
  if (evalType === 'fail_only') return []
  return [...tests.FAIL_TO_PASS, ...tests.PASS_TO_PASS].filter((test) => !isReported(test, statuses))
}

export function isReported(test: string, statuses: StatusMap): boolean {
  return statuses.has(test) || (isCutShort(test) && [...statuses.keys()].some((name) => name.startsWith(test)))
}

/** Lowest similarity at which a reported name is shown beside a test that was not reported. */
const NEAR = 0.4

/**
 * Returns the reported names most similar to `test`, best first. Compares sets of words, so order and separators do not
 * matter.
 */
export function nearestNames(test: string, statuses: StatusMap, most = 3): string[] {
  const wanted = wordsOf(test)
  return [...statuses.keys()]
    .map((name) => ({ name, score: similarity(wanted, wordsOf(name)) }))
    .filter(({ score }) => score >= NEAR)
    .toSorted((a, b) => b.score - a.score)
    .slice(0, most)
    .map(({ name }) => name)
}

function wordsOf(name: string): Set<string> {
  return new Set(name.split(/\W+/).filter((word) => word !== ''))
}

/** Dice coefficient of two sets of words, 0 to 1. */
function similarity(one: ReadonlySet<string>, other: ReadonlySet<string>): number {
  const total = one.size + other.size
  return total === 0 ? 0 : (2 * [...one].filter((word) => other.has(word)).length) / total
}

function divide(tests: readonly string[], verdictOf: (test: string) => Verdict): Outcome {
  const verdicts = tests.map((test) => [test, verdictOf(test)] as const)
  return {
    success: verdicts.filter(([, verdict]) => verdict === true).map(([test]) => test),
    failure: verdicts.filter(([, verdict]) => verdict === false).map(([test]) => test),
  }
}
