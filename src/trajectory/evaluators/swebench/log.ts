/** A test and its status in a log. The datasets use pytest's statuses for every runner. */
export type Finding = readonly [test: string, status: string]

/** Parses a runner's output. Pure. A later finding of a test replaces an earlier one. */
export type LogParser = (log: string) => Finding[]

export const PASSED = 'PASSED'
export const FAILED = 'FAILED'
export const SKIPPED = 'SKIPPED'
export const ERROR = 'ERROR'
export const XFAIL = 'XFAIL'

const STATUSES = [FAILED, PASSED, SKIPPED, ERROR, XFAIL]

export function isStatus(word: string): boolean {
  return STATUSES.includes(word)
}

export function startsWithStatus(line: string): boolean {
  return STATUSES.some((status) => line.startsWith(status))
}

export function endsWithStatus(line: string): boolean {
  return STATUSES.some((status) => line.endsWith(status))
}

/** Python's white space: Python programs created the test lists that are compared with the logs. */
export const BLANK = String.raw`[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]`
const BLANKS = new RegExp(`${BLANK}+`)
const LEADING = new RegExp(`^${BLANK}+`)

export function splitWords(line: string): string[] {
  return line.split(BLANKS).filter((word) => word !== '')
}

export function stripStart(line: string): string {
  return line.replace(LEADING, '')
}

/** Trims the end by a loop: a regular expression would take quadratic time on a line of many blanks. */
export function strip(line: string): string {
  const text = stripStart(line)
  let end = text.length
  while (end > 0 && BLANKS.test(text[end - 1]!)) end -= 1
  return text.slice(0, end)
}
