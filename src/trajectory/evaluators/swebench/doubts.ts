import { strip } from './log.ts'

/**
 * Finds tests that a log reports as failed anywhere in a line. Output of a test may precede a result on the same line and hide
 * it from a parser, which reads the start of a line; a forged line may then report the test as passed. A returned test has
 * not passed. May return more names than failed tests; each is the whole name of a test.
 */
export function findDoubts(parserName: string, log: string): Set<string> {
  const find = FINDERS[parserName.replace(/^parse_log_/, '')] ?? findInPytest
  return new Set(log.split('\n').flatMap((line, index, lines) => find(line, lines[index + 1] ?? '')))
}

type Finder = (line: string, next: string) => string[]

/** Only the end of a longer line is searched, where the runner prints results. */
const LINE = 10_000

const findInPytest: Finder = (line) => matches(line, /(?:FAILED|ERROR) (\S{1,2000})/g)

/** `FAIL: test (class)`, the heading of a trace, and the test's description on the next line, which may be its name. */
const findInUnittest: Finder = (line, next) => {
  const [name] = matches(line, /(?:FAIL|ERROR): (.{1,2000})$/g)
  if (name === undefined) return []
  return [strip(name), ...(/^-{20}/.test(next) ? [] : [strip(next)])]
}

/** `___ file.py:test ___`, the heading of a trace. */
const findInSympy: Finder = (line) => matches(line, /\.py:(\w{1,500}) _/g)

const findInGo: Finder = (line) => matches(line, /--- FAIL: (\S{1,2000}) \(/g)
const findInTap: Finder = (line) => matches(strip(line), /not ok \d{1,9} (.{1,2000})$/g)
const findInJest: Finder = (line) => matches(strip(line), /[✕×] (.{1,2000}?)(?: \(\d{1,9} ?m?s\)| \d{1,9} ?m?s)?$/g)

/** For runners whose output tests cannot interleave. */
const findNothing: Finder = () => []

const FINDERS: Readonly<Record<string, Finder>> = {
  django: findInUnittest,
  unittest: findInUnittest,
  sympy: findInSympy,
  gotest: findInGo,
  gotest_json: findNothing,
  tap: findInTap,
  jest: findInJest,
  vitest: findInJest,
  jest_json: findNothing,
  mocha: findNothing,
  highlightjs: findNothing,
  karma: findNothing,
  carbon: findNothing,
  react_pdf: findNothing,
  grommet: findNothing,
  marked: findNothing,
}

function matches(line: string, pattern: RegExp): string[] {
  return [...line.slice(-LINE).matchAll(pattern)].map(([, name]) => name!)
}
