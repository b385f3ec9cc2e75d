import { ERROR, FAILED, PASSED, SKIPPED, XFAIL, isStatus, type Finding } from './log.ts'

export type StatusMap = ReadonlyMap<string, string>

export interface TestLists {
  FAIL_TO_PASS: readonly string[]
  PASS_TO_PASS: readonly string[]
}

/** `fail_only`: the runner names only what failed, so what it does not name has passed. */
export type EvalType = 'pass_and_fail' | 'fail_only'

interface Outcome {
  success: string[]
  failure: string[]
}

export interface TestsReport {
  FAIL_TO_PASS: Outcome
  PASS_TO_PASS: Outcome
}

/** What counts of each test: the last that was said of it. */
export function toStatusMap(findings: readonly Finding[]): Map<string, string> {
  return new Map(findings)
}

/**
 * As above, but one that was ever reported as failed, or that `doubts` names, has not passed: a runner reports a test once,
 * so of two reports one is somebody else's. Words that only begin like a status, with which a test would be in neither list,
 * say nothing.
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

/** By the rules of the swebench package, version 5: a skipped test was not fixed, but neither was it broken. */
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

/** From 0 to 1; 1 when there is nothing to do. */
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

/** Whether a log without a single result is that of tests which ran, of runners that name only what failed. */
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

/** Undefined: neither, as with a word that only looks like a status. */
type Verdict = boolean | undefined

function judge(test: string, statuses: StatusMap, isGood: (status: string | undefined) => boolean): Verdict {
  const status = statuses.get(resolveName(test, statuses) ?? '')
  if (status === undefined) return false
  if (isGood(status)) return true
  return hasFailed(status) || status === SKIPPED ? false : undefined
}

/**
 * The name under which a test was reported. Datasets cut some names short within their parameters; such a one stands for
 * all that begin with it, if those agree.
 */
function resolveName(test: string, statuses: StatusMap): string | undefined {
  if (statuses.has(test)) return test
  if (!isCutShort(test)) return undefined
  const candidates = [...statuses.keys()].filter((name) => name.startsWith(test))
  const verdicts = new Set(candidates.map((name) => hasPassed(statuses.get(name))))
  return verdicts.size === 1 ? candidates[0] : undefined
}

/** Whether the parameters of a test's name have no end. */
function isCutShort(test: string): boolean {
  return test.split('[').length > test.split(']').length
}

/** Tests that must pass and that the log does not name. Empty for `fail_only`, where silence means success. */
export function notReported(statuses: StatusMap, tests: TestLists, evalType: EvalType): string[] {
  if (evalType === 'fail_only') return []
  return [...tests.FAIL_TO_PASS, ...tests.PASS_TO_PASS].filter((test) => !isReported(test, statuses))
}

export function isReported(test: string, statuses: StatusMap): boolean {
  return statuses.has(test) || (isCutShort(test) && [...statuses.keys()].some((name) => name.startsWith(test)))
}

/** Lowest similarity at which a reported name is shown beside a test that was not reported. */
const NEAR = 0.4

/** The reported names most similar to `test`, best first; compared by the words they consist of, so order and separators do not count. */
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
