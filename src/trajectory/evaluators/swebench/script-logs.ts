import { BLANK, FAILED, PASSED, SKIPPED, strip, stripStart, type Finding, type LogParser } from './log.ts'

const BY_SIGN: Readonly<Record<string, string>> = { '✓': PASSED, '✕': FAILED, '○': SKIPPED, '×': FAILED, '↓': SKIPPED }

const JEST = new RegExp(`^(✓|✕|○)${BLANK}([^\n]+?)(?:${BLANK}\\(\\p{Nd}+${BLANK}*m?s\\))?$`, 'u')
const VITEST = new RegExp(`^(✓|×|↓)${BLANK}([^\n]+?)(?:${BLANK}(?:\\p{Nd}+${BLANK}*m?s?|\\[skipped\\]))?$`, 'u')

/** `jest --verbose`: names of tests without their blocks. */
export const parseJest: LogParser = (log) => signs(log, JEST)

/** `vitest --reporter=verbose`. */
export const parseVitest: LogParser = (log) => signs(log, VITEST)

/** `jest --json` through the filter of the datasets: `[PASSED] block > test`. */
export const parseJestJson: LogParser = (log) =>
  log.split('\n').flatMap((raw): Finding[] => {
    const match = new RegExp(`^\\[(PASSED|FAILED)\\]${BLANK}([^\n]+)$`).exec(strip(raw))
    return match === null ? [] : [[match[2]!, match[1]!]]
  })

/** `ok 1 name` and `not ok 2 name`, at any depth. */
export const parseTap: LogParser = (log) =>
  log.split('\n').flatMap((raw): Finding[] => {
    const match = /^(ok|not ok) \p{Nd}+ ([^\n]+)$/u.exec(strip(raw))
    return match === null ? [] : [[match[2]!, match[1] === 'ok' ? PASSED : FAILED]]
  })

/** mocha's tree: the last block, then the test. Ignores the output after the counts, which repeats the failures. */
export const parseMocha: LogParser = (log) => {
  const findings: Finding[] = []
  let block: string | undefined
  for (const line of (/\n[ \t]*\p{Nd}+ passing/u.exec(log) === null ? log : beforeCounts(log)).split('\n')) {
    const text = strip(line)
    const sign = ['✓', '✔'].find((each) => text.startsWith(each))
    const name = (test: string): string =>
      [...(block === undefined ? [] : [block]), strip(test.replaceAll(/\(\p{Nd}+ms\)/gu, ''))].join('.')
    if (sign !== undefined) findings.push([name(line.slice(line.indexOf(sign) + 1)), PASSED])
    else if (/^\p{Nd}+\)/u.test(text)) findings.push([name(line.slice(line.indexOf(')') + 1)), FAILED])
    else if (line.startsWith('  ')) block = text
  }
  return findings
}

/** karma's tree, from the start of the browser to its summary. */
export const parseKarma: LogParser = (log) => {
  const line = new RegExp(`^(${BLANK}*)?([✔✖])?${BLANK}([^\n]*)$`)
  const findings: Finding[] = []
  const blocks: string[] = []
  let depth = -1
  let hasStarted = false
  for (const text of log.split('\n')) {
    if (text.startsWith('SUMMARY:')) return findings
    if (text.includes('Starting browser')) hasStarted = true
    else if (hasStarted) {
      const [matched, indent = '', sign, name = ''] = line.exec(text) ?? []
      if (matched === undefined) continue
      if (sign !== undefined) findings.push([[...blocks, name].join(' > '), sign === '✔' ? PASSED : FAILED])
      else if (indent.length > 0 && indent.length > depth) blocks.push(name)
      else if (indent.length > 0 && indent.length < depth) blocks.pop()
      if (sign === undefined && indent.length > 0) depth = indent.length
    }
  }
  return findings
}

/** `PASS file` and `FAIL file`, without durations. */
export const parseJestFiles: LogParser = (log) =>
  log.split('\n').flatMap((line): Finding[] => {
    const match = new RegExp(`^(PASS|FAIL)${BLANK}([^\n]*)`).exec(line)
    if (match === null) return []
    const name = match[2]!
    const timed = [...name.matchAll(new RegExp(`${BLANK}\\([\\p{Nd}.]+(?:ms|${BLANK}s|s)\\)`, 'gu'))]
    // Tries the units in order, and the last match of each.
    const lastOf = (unit: string) => timed.findLast(([text]) => isUnit(text, unit))
    const cut = lastOf('ms)') ?? lastOf(' s)') ?? lastOf('s)')
    return [[cut === undefined ? name : name.slice(0, cut.index), match[1] === 'PASS' ? PASSED : FAILED]]
  })

/**
 * Like `parseJestFiles`, with failures first, durations only at the end of a line, and names possibly on the next line.
 */
export const parseGrommet: LogParser = (log) => {
  const time = new RegExp(`${BLANK}\\([\\p{Nd}.]+${BLANK}?(?:ms|s)\\)$`, 'u')
  const findings = (word: string, status: string): Finding[] =>
    [...log.matchAll(new RegExp(`(?<![^\n])${word}${BLANK}([^\n]*)`, 'g'))].map(([, name]) => [
      strip(name!).replace(time, ''),
      status,
    ])
  return [...findings('FAIL', FAILED), ...findings('PASS', PASSED)]
}

/** jasmine reports only failures. */
export const parseMarked: LogParser = (log) =>
  log.split('\n').flatMap((line): Finding[] => {
    const match = new RegExp(`^\\p{Nd}+\\)${BLANK}([^\n]*)`, 'u').exec(line)
    return match === null ? [] : [[strip(match[1]!), FAILED]]
  })

function signs(log: string, pattern: RegExp): Finding[] {
  return log.split('\n').flatMap((raw): Finding[] => {
    const match = pattern.exec(strip(raw))
    return match === null ? [] : [[pattern === JEST ? strip(match[2]!) : match[2]!, BY_SIGN[match[1]!]!]]
  })
}

function beforeCounts(log: string): string {
  return log.slice(0, /\n[ \t]*\p{Nd}+ passing/u.exec(log)!.index)
}

function isUnit(time: string, unit: string): boolean {
  if (unit === 'ms)') return time.endsWith(unit)
  const isBlankBefore = stripStart(time.at(-3)!) === ''
  return unit === ' s)' ? isBlankBefore && time.endsWith('s)') : /[\p{Nd}.]s\)$/u.test(time)
}
