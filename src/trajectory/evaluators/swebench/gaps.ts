import { nearestNames } from './report.ts'
import type { Reading } from './verdict.ts'

/** Maximum number of names in the report. */
const MOST_GAPS = 20

/** Returns report fields about required tests that are missing from the log; empty if there are none. */
export function toGapNotes(reading: Reading): Record<string, unknown> {
  const { notReported: missing, statuses } = reading
  if (missing.length === 0 || !reading.hasResults) return {}
  return {
    not_reported_count: missing.length,
    not_reported: missing.slice(0, MOST_GAPS).map((test) => ({ test, nearest: nearestNames(test, statuses) })),
    warning: `The test log does not name ${count(missing.length)} that the row requires; see not_reported.`,
  }
}

/** Describes tests that no run reports, for an error message. */
export function describeGaps(id: string, unknown: readonly string[], { statuses }: Reading): string {
  const shown = unknown.slice(0, 3).map((test) => {
    const near = nearestNames(test, statuses)
    return `${test} (nearest reported: ${near.length === 0 ? 'none' : near.join(', ')})`
  })
  const more = unknown.length > shown.length ? `, and ${unknown.length - shown.length} more` : ''
  return (
    `Not reported: ${count(unknown.length)} of ${id} that must pass appear in no test log, neither with this patch nor with ` +
    `the reference: ${shown.join('; ')}${more}. Correct log_parser, test_cmd or the names in the row. No reward was given.`
  )
}

function count(tests: number): string {
  return tests === 1 ? '1 test' : `${tests} tests`
}
