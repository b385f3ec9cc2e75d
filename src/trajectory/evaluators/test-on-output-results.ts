import * as z from 'zod'

export const TestStatus = z.enum(['PASSED', 'FAILED', 'ERROR', 'SKIPPED', 'XFAIL', 'XPASS'])
export type TestStatus = z.infer<typeof TestStatus>

/** Statuses from best to worst. The worse of two reports on one test counts: a test may have printed the other. */
const BADNESS: readonly TestStatus[] = ['PASSED', 'XPASS', 'XFAIL', 'SKIPPED', 'ERROR', 'FAILED']

const STATUSES = TestStatus.options.join('|')
/** Lines of pytest's summary (`-rA`) and of its verbose output (`-v`). */
const SUMMARY = new RegExp(`^(${STATUSES}) (.+)$`)
const VERBOSE = new RegExp(`^(\\S.*?::.*?) (${STATUSES})(?: +\\(.*\\))?(?: +\\[ *\\d+%\\])?$`)
/** Prefix of pytest-xdist. */
const WORKER = /^\[gw\d+\] (?:\[ *\d+%\] )?/
/** Summary of skipped tests: a number and a line instead of names. */
const FOLDED = /^\[\d+\] /
/** Terminal colour codes. */
// oxlint-disable-next-line no-control-regex
const COLOURS = /\u001B\[[0-9;]*m/g

/**
 * Parses pytest's output into statuses by full test id. A summary may append " - " and a reason to an id. An id may also
 * contain " - ", so known ids are matched first.
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
  /** Absent: not reported. */
  found?: TestStatus
}

export interface Comparison {
  mismatches: Mismatch[]
  /** Ids that were reported but not expected. */
  unexpected: string[]
}

/**
 * Compares expected with reported statuses. An expected id without `::` matches all tests with that short name, in any file,
 * and each must have the expected status.
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
      .map((each) => ({ id: each, expected: status, found: found.get(each) }))
  })
  return { mismatches, unexpected: [...found.keys()].filter((id) => !seen.has(id)) }
}

/** `tests/a.py::TestA::test_b` is `TestA.test_b`. */
function shortNameOf(id: string): string {
  return id.includes('::') ? id.split('::').slice(1).join('.') : id
}
