import { stateOf, type Canary, type CanaryState } from './canary.ts'
import type { Finding } from './log.ts'
import {
  hasFailed,
  hasPassed,
  isResolved,
  notReported,
  reportTests,
  saysThatTestsRan,
  toWaryStatusMap,
  type EvalType,
  type TestLists,
  type TestsReport,
} from './report.ts'
import { decodeOutput, type TestRun } from './run-tests.ts'

/** What a run says, before it is asked whether it can be believed. */
export interface Reading {
  statuses: ReadonlyMap<string, string>
  /** Reported as passed and as failed; taken as failed. */
  disputed: string[]
  report: TestsReport
  /** Required tests that the log does not name; the report counts them as failures. */
  notReported: string[]
  resolved: boolean
  /** Whether anything at all is known of the tests. */
  hasResults: boolean
  canaries: ReadonlyMap<Canary, CanaryState>
}

export function readRun(run: TestRun, canaries: readonly Canary[], tests: TestLists, evalType: EvalType): Reading {
  const isOurs = ([test]: Finding): boolean => canaries.some(({ nonce }) => test.includes(nonce))
  const { statuses, disputed } = toWaryStatusMap(
    run.findings.filter((finding) => !isOurs(finding)),
    run.doubts,
  )
  const report = reportTests(statuses, tests, evalType)
  const hasResults = statuses.size > 0 || (evalType === 'fail_only' && saysThatTestsRan(decodeOutput(run.output)))
  return {
    statuses,
    disputed,
    report,
    notReported: notReported(statuses, tests, evalType),
    resolved: hasResults && isResolved(report),
    hasResults,
    canaries: new Map(canaries.map((canary) => [canary, stateOf(canary, run.findings)])),
  }
}

/** Whether a control run, without the patch, must say what to make of this one. */
export function needsControlRun(run: TestRun, reading: Reading): boolean {
  if (!reading.hasResults || isNotRun(run)) return true
  return reading.resolved && (hasOddCanary(reading) || isSilentSuccess(run, reading))
}

/**
 * Required tests that are missing from the log, where nothing else keeps the patch from being resolved. Empty when a
 * required test failed by name, or when the runner could not load the file of a missing test: then the patch failed.
 */
export function decidingGaps(reading: Reading): string[] {
  const { report, notReported: missing, hasResults } = reading
  const failures = [...report.FAIL_TO_PASS.failure, ...report.PASS_TO_PASS.failure]
  if (!hasResults || missing.length === 0 || failures.some((test) => !missing.includes(test))) return []
  const hasBroken = missing.some((test) => test.includes('::') && hasBrokenFile(reading, test.split('::', 1)[0]!))
  return hasBroken ? [] : missing
}

/** Whether the shell could not run the tests; or a test made it look so. */
export function isNotRun({ exitCode }: TestRun): boolean {
  return exitCode === 126 || exitCode === 127
}

export interface Canaries {
  /** What they were good for. `off`: there were none. `unsupported`: none runs here, patch or no patch. */
  canary: 'off' | 'failed' | 'unsupported'
  /** Why the results are not those of the tests; undefined when they may be. */
  forgery?: string
}

/** Whether the results are those of the tests. `control` is a run without the patch, where there was one. */
export function judgeCanaries(
  run: TestRun,
  reading: Reading,
  control: { run: TestRun; reading: Reading } | undefined,
): Canaries {
  const entries = [...reading.canaries]
  const effective = entries.filter(([, state]) => state === 'failed')
  const canary = entries.length === 0 ? 'off' : effective.length > 0 ? 'failed' : 'unsupported'
  const passed = entries.find(([, state]) => state === 'passed')
  if (passed !== undefined && control === undefined)
    return { canary, forgery: `the test that must fail in ${passed[0].file} was reported as passed` }
  if (control !== undefined) {
    for (const [{ file, nonce }, state] of entries) {
      if (state === 'failed' || stateIn(control.reading, nonce) !== 'failed') continue
      if (state === 'missing' && hasBrokenFile(reading, file)) continue
      const what = state === 'passed' ? 'was reported as passed' : 'was not reported at all'
      return { canary, forgery: `the test that must fail in ${file} ${what}` }
    }
    if (isSilentSuccess(run, reading) && control.run.exitCode !== 0)
      return { canary, forgery: 'tests failed and the exit code is 0, which it is not without the patch' }
  }
  if (effective.length === 0 && run.exitCode !== 0 && reading.resolved && !hasFailure(reading))
    return { canary, forgery: `no test failed and the exit code is ${run.exitCode}` }
  return { canary }
}

function stateIn(reading: Reading, nonce: string): CanaryState | undefined {
  return [...reading.canaries].find(([canary]) => canary.nonce === nonce)?.[1]
}

function hasOddCanary(reading: Reading): boolean {
  return [...reading.canaries.values()].some((state) => state !== 'failed')
}

/** A test of ours failed, and still all is said to be well. */
function isSilentSuccess(run: TestRun, reading: Reading): boolean {
  return run.exitCode === 0 && [...reading.canaries.values()].includes('failed')
}

function hasFailure({ statuses }: Reading): boolean {
  return [...statuses.values()].some(hasFailed)
}

/** The runner says of the whole file that it could not be read; then nothing in it ran, and nothing in it passed. */
function hasBrokenFile({ statuses }: Reading, file: string): boolean {
  if (!hasFailed(statuses.get(file))) return false
  return ![...statuses].some(([test, status]) => test.startsWith(`${file}::`) && hasPassed(status))
}
