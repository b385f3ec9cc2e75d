import { parseJson } from '../../../lib/json/json-text.ts'
import { FAILED, PASSED, SKIPPED, strip, type Finding, type LogParser } from './log.ts'

const BY_WORD: Readonly<Record<string, string>> = { PASS: PASSED, FAIL: FAILED, SKIP: SKIPPED }

/** `go test -v`: `--- PASS: TestName (0.00s)`, subtests included. */
export const parseGo: LogParser = (log) =>
  log.split('\n').flatMap((raw): Finding[] => {
    const line = strip(raw)
    const word = /^--- (PASS|FAIL|SKIP): ./.exec(line)?.[1]
    const time = line.endsWith(')') ? line.lastIndexOf(' (', line.length - 4) : -1
    return word === undefined || time <= 10 ? [] : [[line.slice(10, time), BY_WORD[word]!]]
  })

/** `go test -json`, one object per line. Output of tests is inside strings and cannot look like an object. */
export const parseGoJson: LogParser = (log) =>
  log.split('\n').flatMap((line): Finding[] => {
    if (!line.startsWith('{')) return []
    const event = parseJson(line) as { Action?: unknown; Test?: unknown } | undefined
    const status = BY_WORD[String(event?.Action).toUpperCase()]
    return status === undefined || typeof event?.Test !== 'string' ? [] : [[event.Test, status]]
  })
