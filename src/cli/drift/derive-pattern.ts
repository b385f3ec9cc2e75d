import { escapePattern } from '../../gateway/quirks/rule-pattern.ts'
import { commonPrefix, commonSuffix } from '../../lib/collections/common-prefix.ts'

/** Part of a text that differs in the next call, with a pattern that finds it and a constant replacement. */
export interface VolatilePiece {
  kind: 'time' | 'uuid' | 'hash' | 'path' | 'number' | 'id'
  /** Both values. */
  before: string
  now: string
  /** Pattern that matches both values with their surrounding text, and the text with the first value. */
  find: string
  replace: string
}

/** Limit of changed runs; a text with more changes is another text. */
const MOST_SPOTS = 20
const LONGEST_CHANGE = 20_000

/**
 * Returns the volatile pieces in which two versions of a text differ. Empty if words were added, removed or replaced, which
 * no rule should hide.
 */
export function deriveVolatile(before: string, now: string): VolatilePiece[] {
  const change = findChange(before, now)
  if (change === undefined) return []
  const spots = toSpots(change.before, change.now)
  if (spots === undefined || spots.length > MOST_SPOTS) return []
  const pieces = merged(spots, change).map((spot, i, all) => toPiece(spot, all[i - 1], all[i + 1], change))
  return pieces.every((piece) => piece !== undefined) ? pieces : []
}

// --- what changed -----------------------------------------------------------------------------------------------------

interface Change {
  /** The whole texts. */
  texts: [before: string, now: string]
  before: Run[]
  now: Run[]
}

/** A sequence of letters and digits, or one other character. */
interface Run {
  text: string
  at: number
  isWord: boolean
}

/** Characters of times, paths and ids. */
const CONNECTED = /[A-Za-z0-9:.\-/+_~]/

/** Returns the runs between the common start and the common end, extended to whole words. */
function findChange(before: string, now: string): Change | undefined {
  const start = commonPrefix(before, now)
  const tail = commonSuffix(before, now, Math.min(before.length, now.length) - start)
  let from = start
  while (from > 0 && CONNECTED.test(before[from - 1] as string)) from -= 1
  let end = tail
  while (end > 0 && CONNECTED.test(before[before.length - end] as string)) end -= 1
  const middles = [before, now].map((text) => text.slice(from, text.length - end))
  if (middles.some((text) => text.length > LONGEST_CHANGE)) return undefined
  const [one, other] = middles.map((text) => runsOf(text, from))
  return { texts: [before, now], before: one as Run[], now: other as Run[] }
}

function runsOf(text: string, offset: number): Run[] {
  return Array.from(text.matchAll(/[A-Za-z0-9]+|[^A-Za-z0-9]/gu), ({ 0: run, index }) => ({
    text: run,
    at: offset + index,
    isWord: /[A-Za-z0-9]/.test(run),
  }))
}

/** Range of runs that is a changed time, id or path: indexes of runs, `to` exclusive. */
interface Spot {
  from: number
  to: number
}

/** Undefined if the texts differ in more than words. */
function toSpots(before: readonly Run[], now: readonly Run[]): Spot[] | undefined {
  if (before.length !== now.length) return undefined
  const spots: Spot[] = []
  for (const [i, run] of before.entries()) {
    const other = now[i] as Run
    if (run.text === other.text) continue
    if (!run.isWord || !other.isWord) return undefined
    const last = spots.at(-1)
    if (last !== undefined && i < last.to) continue
    spots.push(wordAround(before, i))
  }
  return spots
}

function wordAround(runs: readonly Run[], index: number): Spot {
  const isInWord = (run: Run | undefined): boolean => run !== undefined && CONNECTED.test(run.text)
  let from = index
  while (isInWord(runs[from - 1])) from -= 1
  let to = index + 1
  while (isInWord(runs[to])) to += 1
  while (runs[from]?.isWord === false) from += 1
  while (runs[to - 1]?.isWord === false) to -= 1
  return { from, to }
}

/** Merges spots that are too close together: the pattern of the second needs literal text before it. */
function merged(spots: readonly Spot[], { before }: Change): Spot[] {
  const result: Spot[] = []
  for (const spot of spots) {
    const last = result.at(-1)
    const gap = last === undefined ? Number.POSITIVE_INFINITY : startOf(before, spot.from) - startOf(before, last.to)
    if (last !== undefined && gap <= SHORTEST_GAP) last.to = spot.to
    else result.push({ ...spot })
  }
  return result
}

const SHORTEST_GAP = 6

function startOf(runs: readonly Run[], index: number): number {
  const last = runs.at(-1)
  return runs[index]?.at ?? (last?.at ?? 0) + (last?.text.length ?? 0)
}

// --- how to recognise it ----------------------------------------------------------------------------------------------

const LONGEST_LEFT = 40
const DEFAULT_LEFT = 24
const LONGEST_RIGHT = 8

function toPiece(
  spot: Spot,
  previous: Spot | undefined,
  next: Spot | undefined,
  change: Change,
): VolatilePiece | undefined {
  const { texts, before, now } = change
  const [from, to] = [startOf(before, spot.from), startOf(before, spot.to)]
  const left = leftOf(texts[0], from, previous === undefined ? 0 : startOf(before, previous.to))
  if (left === undefined) return undefined
  const right = rightOf(texts[0], to, next === undefined ? texts[0].length : startOf(before, next.from))
  const values = {
    before: texts[0].slice(from, to),
    now: texts[1].slice(startOf(now, spot.from), startOf(now, spot.to)),
  }
  const body = generalise(before.slice(spot.from, spot.to), now.slice(spot.from, spot.to), values)
  if (body === undefined) return undefined
  const atEnd = to + right.length === texts[0].length && right === ''
  return {
    kind: kindOf(values.before),
    ...values,
    find: `${left.isStart ? '^' : ''}${escapePattern(left.text)}${body}${escapePattern(right)}${atEnd ? '$' : ''}`,
    replace: `${left.text}${values.before}${right}`,
  }
}

/** Returns enough literal text before a position to identify it, or all text up to the start. */
function leftOf(text: string, at: number, earliest: number): { text: string; isStart: boolean } | undefined {
  const line = Math.max(earliest, text.lastIndexOf('\n', at - 1) + 1)
  for (const from of [Math.max(line, at - DEFAULT_LEFT), Math.max(earliest, at - LONGEST_LEFT)]) {
    const words = wholeCharacters(text.slice(from, at))
    if ((words.match(/[\p{L}\p{N}]/gu) ?? []).length >= 3 && [...words].slice(0, 3).length === 3) {
      return { text: words, isStart: false }
    }
  }
  return earliest === 0 && at <= LONGEST_LEFT ? { text: text.slice(0, at), isStart: true } : undefined
}

/** Returns literal text after a position, up to the end of the line: without it the prefix of a longer number would match. */
function rightOf(text: string, at: number, latest: number): string {
  const some = wholeCharacters(text.slice(at, Math.min(latest, at + LONGEST_RIGHT)))
  const line = some.indexOf('\n')
  return line === -1 ? some : some.slice(0, line + 1)
}

/** Removes half a surrogate pair at either end. */
function wholeCharacters(text: string): string {
  return text.replace(/^[\uDC00-\uDFFF]/, '').replace(/[\uD800-\uDBFF]$/, '')
}

const UUID = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i
const HEX = /^(?=.*[0-9])(?=.*[a-f])[0-9a-f]{6,}$|^(?=.*[0-9])(?=.*[A-F])[0-9A-F]{6,}$/
const DATE_OR_TIME = /\d[:/-]\d/
const CALENDAR =
  /^(?:(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?|(?:jan|feb|mar|apr|may|june?|july?|aug|sept?|oct|nov|dec)[a-z]*|am|pm)$/i
const TEMPORARY = /\/(?:tmp|temp|var\/folders)\//i

function generalise(
  before: readonly Run[],
  now: readonly Run[],
  values: { before: string; now: string },
): string | undefined {
  if (UUID.test(values.before) && UUID.test(values.now)) {
    return ['8', '4', '4', '4', '12'].map((length) => `[0-9a-fA-F]{${length}}`).join('-')
  }
  const isDate = DATE_OR_TIME.test(values.before)
  const isTemporary = TEMPORARY.test(`/${values.before}`)
  const parts = before.map(({ text, isWord }, i) => {
    const other = now[i]?.text ?? ''
    if (!isWord) return escapePattern(text)
    if (text === other) return isDate ? text.replaceAll(/[0-9]+/g, (digits) => `[0-9]{${digits.length}}`) : text
    return generaliseRun(text, other, { isDate, isTemporary })
  })
  return parts.every((part) => part !== undefined) ? parts.join('') : undefined
}

function generaliseRun(
  one: string,
  other: string,
  { isDate, isTemporary }: { isDate: boolean; isTemporary: boolean },
): string | undefined {
  if (CALENDAR.test(one) && CALENDAR.test(other)) return '[A-Za-z]{2,9}'
  if (HEX.test(one) && HEX.test(other)) return times('[0-9a-fA-F]', one, other)
  const [left, right] = [one, other].map((text) => text.match(/[0-9]+|[A-Za-z]+/g) ?? [])
  const hasShape = left?.length === right?.length && left?.every((part, i) => /[0-9]/.test(part) || part === right?.[i])
  if (hasShape && /[0-9]/.test(one)) {
    return left?.map((part, i) => digitsOrLetters(part, right?.[i] ?? '', isDate)).join('')
  }
  const isRandom = isTemporary || (/[0-9]/.test(one + other) && Math.min(one.length, other.length) >= 6)
  return isRandom ? times('[A-Za-z0-9]', one, other) : undefined
}

function digitsOrLetters(part: string, other: string, isDate: boolean): string {
  if (!/[0-9]/.test(part)) return part
  return isDate && part.length === other.length ? `[0-9]{${part.length}}` : '[0-9]{1,20}'
}

function times(characters: string, one: string, other: string): string {
  const most = Math.max(one.length, other.length)
  return one.length === other.length ? `${characters}{${most}}` : `${characters}{1,${Math.min(128, 2 * most)}}`
}

function kindOf(value: string): VolatilePiece['kind'] {
  if (UUID.test(value)) return 'uuid'
  if (DATE_OR_TIME.test(value) || CALENDAR.test(value.split(/[^A-Za-z]/)[0] ?? '')) return 'time'
  if (HEX.test(value)) return 'hash'
  if (value.includes('/')) return 'path'
  return /^[0-9.]+$/.test(value) ? 'number' : 'id'
}
