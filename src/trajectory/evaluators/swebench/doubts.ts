import { strip } from './log.ts'

/**
 * Which tests a log says have failed, wherever in a line it does. What a test prints may stand before a result on the same
 * line and hide it from a parser, which looks at the beginning; then the same test is said to have passed on a line of its
 * own. A test that is named here has not passed. More may be named than have failed: each name is the whole name of a test.
 */
export function findDoubts(parserName: string, log: string): Set<string> {
  const find = FINDERS[parserName.replace(/^parse_log_/, '')] ?? findInPytest
  return new Set(log.split('\n').flatMap((line, index, lines) => find(line, lines[index + 1] ?? '')))
}

type Finder = (line: string, next: string) => string[]

/** Of a line that is longer only its end is looked at, where a runner's own words are. */
const LINE = 10_000

const findInPytest: Finder = (line) => matches(line, /(?:FAILED|ERROR) (\S{1,2000})/g)

/** `FAIL: test (class)`, the heading of a trace, and on the next line what the test is about, which may be its name. */
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

/** Its own files, and names of files, are all there is. */
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
