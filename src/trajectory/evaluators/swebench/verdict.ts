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

/** Results of a run before the check for forgery. */
export interface Reading {
  statuses: ReadonlyMap<string, string>
  /** Tests reported as passed and as failed; they count as failed. */
  disputed: string[]
  report: TestsReport
  /** Required tests that the log does not report; the report counts them as failures. */
  notReported: string[]
  resolved: boolean
  /** Whether the log contains any result. */
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

/** Whether a control run without the patch is needed to interpret this run. */
export function needsControlRun(run: TestRun, reading: Reading): boolean {
  if (!reading.hasResults || isNotRun(run)) return true
  return reading.resolved && (hasOddCanary(reading) || isSilentSuccess(run, reading))
}

/**
 * Returns required tests that are missing from the log, if they alone keep the patch from being resolved. Empty if a required
 * test failed, or if the runner could not load the file of a missing test: then the patch failed.
 */
export function decidingGaps(reading: Reading): string[] {
  const { report, notReported: missing, hasResults } = reading
  const failures = [...report.FAIL_TO_PASS.failure, ...report.PASS_TO_PASS.failure]
  if (!hasResults || missing.length === 0 || failures.some((test) => !missing.includes(test))) return []
  const hasBroken = missing.some((test) => test.includes('::') && hasBrokenFile(reading, test.split('::', 1)[0]!))
  return hasBroken ? [] : missing
}

/** Whether the exit code means that the shell could not run the tests. A test can fake it. */
export function isNotRun({ exitCode }: TestRun): boolean {
  return exitCode === 126 || exitCode === 127
}

export interface Canaries {
  /**
   * `off`: there were no canaries. `failed`: at least one failed, as it must. `unsupported`: none runs, with or without
   * the patch.
   */
  canary: 'off' | 'failed' | 'unsupported'
  /** Evidence that the results are forged; undefined if there is none. */
  forgery?: string
}

/** Checks the results for forgery. `control`: a run without the patch, if there was one. */
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

/** Whether a canary failed and the exit code is still 0. */
function isSilentSuccess(run: TestRun, reading: Reading): boolean {
  return run.exitCode === 0 && [...reading.canaries.values()].includes('failed')
}

function hasFailure({ statuses }: Reading): boolean {
  return [...statuses.values()].some(hasFailed)
}

/** Whether the runner could not load a file, so that none of its tests ran. */
function hasBrokenFile({ statuses }: Reading, file: string): boolean {
  if (!hasFailed(statuses.get(file))) return false
  return ![...statuses].some(([test, status]) => test.startsWith(`${file}::`) && hasPassed(status))
}
