import { writeFileSync } from 'node:fs'
import type { Reporter, TestModule, TestRunEndReason } from 'vitest/node'

export interface TestSummary {
  passed: number
  /** Failed tests, files that could not be loaded, and uncaught errors. */
  failed: number
  skipped: { test: string; reason: string }[]
}

/** Reason of tests that were never started. */
const REASONS: Readonly<Record<string, string>> = { todo: 'the test is not written yet' }
const NO_REASON = 'the file gives no reason'
const LONGEST_REASON = 300

/** Writes counts, and the reasons of skipped tests, which vitest's JSON lacks, to the file of POLAR_TEST_SUMMARY. */
export default class SummaryReporter implements Reporter {
  onTestRunEnd(modules: readonly TestModule[], unhandledErrors: readonly unknown[], _reason: TestRunEndReason): void {
    const file = process.env['POLAR_TEST_SUMMARY']
    if (file !== undefined) writeFileSync(file, JSON.stringify(toSummary(modules, unhandledErrors)))
  }
}

function toSummary(modules: readonly TestModule[], unhandledErrors: readonly unknown[]): TestSummary {
  const summary: TestSummary = { passed: 0, failed: unhandledErrors.length, skipped: [] }
  for (const module of modules) {
    let failed = 0
    for (const test of module.children.allTests()) {
      const result = test.result()
      if (result.state === 'passed') summary.passed++
      else if (result.state === 'skipped')
        summary.skipped.push({
          test: `${module.relativeModuleId} > ${test.fullName}`,
          reason: toLine(result.note ?? REASONS[test.options.mode] ?? NO_REASON),
        })
      else failed++
    }
    // A file that does not load, or whose hook throws outside a test, fails without a failing test.
    summary.failed += module.ok() ? failed : Math.max(failed, 1)
  }
  return summary
}

/** A reason may quote many lines of output. */
function toLine(reason: string): string {
  const line = reason.replaceAll(/\s+/g, ' ').trim()
  return line.length > LONGEST_REASON ? `${line.slice(0, LONGEST_REASON)}…` : line
}
