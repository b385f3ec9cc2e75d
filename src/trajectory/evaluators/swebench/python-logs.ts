import {
  ERROR,
  FAILED,
  PASSED,
  SKIPPED,
  endsWithStatus,
  startsWithStatus,
  strip,
  stripStart,
  splitWords,
  type Finding,
  type LogParser,
} from './log.ts'

/** `STATUS test - message` lines of the `-rA` summary. A name ends at its first blank. */
export const parsePytest: LogParser = (log) => log.split('\n').flatMap((line) => summaryLine(line))

/** Like `parsePytest`; reduces an absolute path in a parameter, which differs between machines, to its last name. */
export const parsePytestOptions: LogParser = (log) =>
  parsePytest(log).map(([test, status]) => [shortenParameter(test), status])

/** Like `parsePytest`; replaces names of mouse buttons by the numbers of older versions. */
export const parseMatplotlib: LogParser = (log) =>
  parsePytest(log.replaceAll('MouseButton.LEFT', '1').replaceAll('MouseButton.RIGHT', '3'))

/** Coloured output, names with blanks, and `test STATUS` lines of older versions. */
export const parsePytestV2: LogParser = (log) =>
  log.split('\n').flatMap((raw): Finding[] => {
    // oxlint-disable-next-line no-control-regex -- they are what is removed
    const line = raw.replaceAll(/\[\p{Nd}+m/gu, '').replaceAll(/[\x01-\x1f]/g, '')
    if (startsWithStatus(line)) {
      const [status = '', ...name] = splitWords(line.startsWith(FAILED) ? line.split(' - ')[0]! : line)
      return name.length === 0 || isSkipCount(status, name[0]!) ? [] : [[name.join(' '), status]]
    }
    if (!endsWithStatus(line)) return []
    const parts = splitWords(line)
    return parts.length < 2 ? [] : [[parts.slice(0, -1).join(' '), parts.at(-1)!]]
  })

/** Like `parsePytestV2`, with percentages after the status, for pydantic. */
export const parsePydantic: LogParser = (log) =>
  log.split('\n').flatMap((raw): Finding[] => {
    // oxlint-disable-next-line no-control-regex -- they are what is removed
    const clean = raw.replaceAll(/\[\p{Nd}+m/gu, '').replaceAll(/[\x01-\x1f]/g, '')
    const line = clean.replaceAll(/FAILED\s{0,20}\[[^\]]{0,200}\]/g, FAILED)
    if (startsWithStatus(line)) return summaryLine(line)
    const [test, status] = endsWithStatus(line) ? splitWords(line) : []
    return test === undefined || status === undefined ? [] : [[test, status]]
  })

/** PASSED may follow the name. Only passes and failures count. */
export const parseSeaborn: LogParser = (log) =>
  log.split('\n').flatMap((line): Finding[] => {
    const [first, second] = splitWords(line)
    if (first === undefined || second === undefined) return []
    if (line.startsWith(FAILED)) return [[second, FAILED]]
    if (line.includes(` ${PASSED} `)) return second === PASSED ? [[first, PASSED]] : []
    return line.startsWith(PASSED) ? [[second, PASSED]] : []
  })

/** sympy's own runner: `test_name ok`, `F` or `E`, and `___ file.py:test ___` above a trace. */
export const parseSympy: LogParser = (log) => {
  const lines = log.split('\n')
  const headings = lines.flatMap((line): Finding[] => {
    const [first, last] = [line.indexOf(' '), line.lastIndexOf(' ')]
    const colon = last < 4 ? -1 : line.lastIndexOf('.py:', last - 4)
    if (first === -1 || colon <= first) return []
    return [[`${line.slice(first + 1, colon)}.py:${line.slice(colon + 4, last)}`, FAILED]]
  })
  const results = lines.flatMap((raw): Finding[] => {
    const line = strip(raw)
    if (!line.startsWith('test_')) return []
    const test = splitWords(line)[0]!
    if (line.endsWith(' E')) return [[test, ERROR]]
    if (line.endsWith(' F')) return [[test, FAILED]]
    return line.endsWith(' ok') ? [[test, PASSED]] : []
  })
  return [...headings, ...results]
}

/** Django's unittest output: `test (class) ... ok`, with output of the test in between. */
export const parseDjango: LogParser = (log) => {
  const findings: Finding[] = []
  let previous: string | undefined
  for (const raw of log.split('\n')) {
    let line = strip(raw)
    if (line.includes('--version is equivalent to version'))
      findings.push(['--version is equivalent to version', PASSED])
    if (line.includes(' ... ')) previous = line.slice(0, line.indexOf(' ... '))
    const suffix = [' ... ok', ' ... OK', ' ...  OK'].find((ending) => line.endsWith(ending))
    if (suffix !== undefined) {
      // One test of django-7188 has its result on the line of a migration.
      if (line.startsWith('Applying sites.0002_alter_domain_unique...test_no_migrations'))
        line = strip(line.slice(line.indexOf('...') + 3))
      findings.push([line.slice(0, line.lastIndexOf(suffix)), PASSED])
    }
    if (line.includes(' ... skipped')) findings.push([line.slice(0, line.indexOf(' ... skipped')), SKIPPED])
    if (line.endsWith(' ... FAIL')) findings.push([line.slice(0, line.indexOf(' ... FAIL')), FAILED])
    if (line.startsWith('FAIL:')) findings.push(...afterLabel(line, FAILED))
    if (line.endsWith(' ... ERROR')) findings.push([line.slice(0, line.indexOf(' ... ERROR')), ERROR])
    if (line.startsWith('ERROR:')) findings.push(...afterLabel(line, ERROR))
    if (stripStart(line).startsWith('ok') && previous !== undefined) findings.push([previous, PASSED])
  }
  const interrupted = [
    ...interruptions(log, 'Testing against Django installed in ', ' silenced).\nok', true),
    ...interruptions(log, 'Internal Server Error: /', '/\nok', false),
    ...interruptions(log, 'System check identified no issues (0 silenced)\nok', '', false),
  ]
  return [...findings, ...interrupted]
}

/**
 * Finds `test ... <begin>…<end>`: a long message of django between a test and its `ok`. Without a regular expression, whose
 * time could be unbounded for output of a test.
 */
function interruptions(log: string, begin: string, end: string, spansLines: boolean): Finding[] {
  const findings: Finding[] = []
  let from = 0
  for (;;) {
    const at = log.indexOf(begin, from)
    if (at === -1) return findings
    from = at + begin.length
    if (at < 5 || !/^\s\.\.\.\s$/.test(log.slice(at - 5, at))) continue
    const close = closing(log, from, end, spansLines)
    if (close === undefined) {
      if (spansLines) return findings
      continue
    }
    findings.push([log.slice(log.lastIndexOf('\n', at - 6) + 1, at - 5), PASSED])
    from = close
  }
}

/** Returns the end of such a message, which is an end of a line; the same line unless `spansLines`. */
function closing(log: string, from: number, end: string, spansLines: boolean): number | undefined {
  if (!spansLines) {
    const at = end === '' ? from : log.indexOf('\n', from) - end.indexOf('\n')
    if (at < from || !log.startsWith(end, at)) return undefined
    const close = at + end.length
    return close === log.length || log[close] === '\n' ? close : undefined
  }
  let at = log.indexOf(end, from)
  while (at !== -1) {
    const close = at + end.length
    if (close === log.length || log[close] === '\n') return close
    at = log.indexOf(end, close)
  }
  return undefined
}

function summaryLine(line: string): Finding[] {
  if (!startsWithStatus(line)) return []
  const [status = '', test] = splitWords(line.startsWith(FAILED) ? line.replaceAll(' - ', ' ') : line)
  return test === undefined || isSkipCount(status, test) ? [] : [[test, status]]
}

/** `SKIPPED [3] file:line: reason` counts tests and names none. */
function isSkipCount(status: string, name: string): boolean {
  return status === SKIPPED && /^\[\p{Nd}+\]$/u.test(name)
}

function shortenParameter(test: string): string {
  const open = test.indexOf('[')
  const close = test.lastIndexOf(']')
  if (open === -1 || close < open) return test
  const parameter = test.slice(open + 1, close)
  const isPath = parameter.startsWith('/') && !parameter.startsWith('//') && !parameter.includes('*')
  return `${test.slice(0, open)}[${isPath ? `/${parameter.split('/').at(-1)}` : parameter}]`
}

function afterLabel(line: string, status: string): Finding[] {
  const test = splitWords(line)[1]
  return test === undefined ? [] : [[test, status]]
}
