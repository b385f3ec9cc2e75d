import * as z from 'zod'

export const TestStatus = z.enum(['PASSED', 'FAILED', 'ERROR', 'SKIPPED', 'XFAIL', 'XPASS'])
export type TestStatus = z.infer<typeof TestStatus>

/** The worse of two reports on one test counts: what is said first may be what a test printed. */
const BADNESS: readonly TestStatus[] = ['PASSED', 'XPASS', 'XFAIL', 'SKIPPED', 'ERROR', 'FAILED']

const STATUSES = TestStatus.options.join('|')
/** As in pytest's summary (`-rA`), and as it goes (`-v`). */
const SUMMARY = new RegExp(`^(${STATUSES}) (.+)$`)
const VERBOSE = new RegExp(`^(\\S.*?::.*?) (${STATUSES})(?: +\\(.*\\))?(?: +\\[ *\\d+%\\])?$`)
/** In front of what pytest-xdist reports as it goes. */
const WORKER = /^\[gw\d+\] (?:\[ *\d+%\] )?/
/** How a summary names skipped tests: how many at which line. */
const FOLDED = /^\[\d+\] /
/** How a terminal is told to change colours. */
// oxlint-disable-next-line no-control-regex
const COLOURS = /\u001B\[[0-9;]*m/g

/**
 * Tests and how they ended, by their full ids, as pytest prints them. A summary may go on after the id with " - " and why;
 * an id may contain that too, so those that are known beforehand are looked for first.
 */
export function parseTestOutput(output: string, known: Iterable<string>): Map<string, TestStatus> {
  const ids = new Set(known)
  const found = new Map<string, TestStatus>()
  const add = (id: string, status: TestStatus) => {
    const before = found.get(id)
    if (before === undefined || BADNESS.indexOf(status) > BADNESS.indexOf(before)) found.set(id, status)
  }
  for (const raw of output.split('\n')) {
    const line = raw.replaceAll(COLOURS, '').replace(WORKER, '').trimEnd()
    const [, status, rest] = SUMMARY.exec(line) ?? []
    if (status !== undefined && rest !== undefined) {
      if (!FOLDED.test(rest)) add(idOf(rest, ids), status as TestStatus)
      continue
    }
    const [, id, verdict] = VERBOSE.exec(line) ?? []
    if (id !== undefined && verdict !== undefined) add(id, verdict as TestStatus)
  }
  return found
}

function idOf(text: string, known: ReadonlySet<string>): string {
  const ends = [...text.matchAll(/ - /g)].map(({ index }) => index)
  const candidates = [text, ...ends.toReversed().map((end) => text.slice(0, end))]
  const isWhole = (id: string) => id.split('[').length === id.split(']').length
  return candidates.find((id) => known.has(id)) ?? candidates.slice(1).findLast(isWhole) ?? text
}

export interface Mismatch {
  id: string
  expected: TestStatus
  /** Absent: it was not reported. */
  found?: TestStatus
}

export interface Comparison {
  mismatches: Mismatch[]
  /** Reported and not expected. */
  unexpected: string[]
}

/**
 * Whether what is expected is so. An expected id without `::` is short for all tests that are called so, in any file, and
 * says that each of them ended like that.
 */
export function compareTests(
  expected: Readonly<Record<string, TestStatus>>,
  found: ReadonlyMap<string, TestStatus>,
): Comparison {
  const byShortName = Map.groupBy(found.keys(), shortNameOf)
  const seen = new Set<string>()
  const mismatches = Object.entries(expected).flatMap(([id, status]): Mismatch[] => {
    const ids = found.has(id) || id.includes('::') ? [id] : (byShortName.get(id) ?? [id])
    for (const each of ids) seen.add(each)
    return ids
      .filter((each) => found.get(each) !== status)
      .map((each) => ({ id: each, expected: status, ...(found.has(each) && { found: found.get(each)! }) }))
  })
  return { mismatches, unexpected: [...found.keys()].filter((id) => !seen.has(id)) }
}

/** `tests/a.py::TestA::test_b` is `TestA.test_b`. */
function shortNameOf(id: string): string {
  return id.includes('::') ? id.split('::').slice(1).join('.') : id
}
