import { toVisibleLine } from '../../lib/visible-text.ts'
import type { TokenDecoder } from '../../trajectory/attribute-context.ts'
import { adviceFor } from './advice.ts'
import { callNumber, type Break, type DriftSummary } from './find-breaks.ts'
import { fitEnd, fitStart, visibleText, widthOf, wrap } from './visible-text.ts'

/** Tokens to show on each side of the first difference. */
const AROUND = 60
const IDS_AROUND = 4
const LABEL = 10

/** Returns the ids that `formatBreak()` shows. */
export function shownIds({ before, now, at }: Break): number[] {
  return [before, now].flatMap((ids) => [...windowOf(ids, at).left, ...windowOf(ids, at).right])
}

/** Returns both sides as JSON: ids and, if known, text before and after the first difference. */
export function sidesOf({ before, now, at }: Break, decoder: TokenDecoder | undefined): Record<string, unknown> {
  const side = (ids: Int32Array): unknown => {
    const { left, right } = windowOf(ids, at)
    const texts = decoder && { text_until: visibleText(left, decoder), text_from: visibleText(right, decoder) }
    return { tokens: ids.length, ids_until: [...left], ids_from: [...right], ...texts }
  }
  return { before: side(before), now: side(now) }
}

function windowOf(ids: Int32Array, at: number): { left: Int32Array; right: Int32Array } {
  return { left: ids.subarray(Math.max(0, at - AROUND), at), right: ids.subarray(at, at + AROUND) }
}

/** `width` is that of the terminal; `advised` is the number of an earlier call with the same advice, if any. */
export function formatBreak(
  found: Break,
  decoder: TokenDecoder | undefined,
  { width, advised }: { width: number; advised?: number },
): string {
  const { node, from, reason, detail, at, before, now } = found
  const room = Math.max(30, Math.min(width, 160)) - LABEL
  // The text before the difference is the same on both sides, and gets a third of the line.
  const shared = fitEnd(windowText(before, at, 'left', decoder), Math.floor(room / 3))
  const rest = room - widthOf(shared)
  const side = (ids: Int32Array, text: (ids: Int32Array) => string): string =>
    at >= ids.length ? '(ends here)' : fitStart(text(ids), rest)
  const whole = (ids: Int32Array): string => windowText(ids, at, 'right', decoder)
  // The same text in other tokens looks the same unless the ends of tokens are shown.
  const isSameText = side(before, whole) === side(now, whole)
  const shown = isSameText ? (ids: Int32Array) => tokenTexts(windowOf(ids, at).right, decoder) : whole
  return [
    ...block(`Call ${callNumber(node)}`, `does not continue call ${callNumber(from)} token by token: ${reason}`, room),
    ...(detail === '' ? [] : block('', toVisibleLine(detail), room)),
    '',
    line('before', `${shared}${side(before, shown)}`),
    line('now', `${shared}${side(now, shown)}`),
    line('', `${' '.repeat(widthOf(shared))}^ token ${at + 1} of ${now.length}`),
    ...block('ids', `before ${formatIds(before, at)}`, room),
    ...block('', `now    ${formatIds(now, at)}`, room),
    ...block('change', advised === undefined ? adviceFor(found) : `as for call ${advised}`, room),
    '',
  ].join('\n')
}

function windowText(ids: Int32Array, at: number, side: 'left' | 'right', decoder: TokenDecoder | undefined): string {
  const isCut = side === 'left' ? at > AROUND : ids.length > at + AROUND
  const text = visibleText(windowOf(ids, at)[side], decoder)
  if (!isCut) return text
  return side === 'left' ? `…${text}` : `${text}…`
}

function tokenTexts(ids: Int32Array, decoder: TokenDecoder | undefined): string {
  return Array.from(ids, (id) => visibleText(Int32Array.of(id), decoder)).join('│')
}

function formatIds(ids: Int32Array, at: number): string {
  const left = [...ids.subarray(Math.max(0, at - IDS_AROUND), at)]
  const right = [...ids.subarray(at + 1, at + 1 + IDS_AROUND)]
  const here = at < ids.length ? `[${ids[at]}]` : '[]'
  const words = [...left, here, ...right].join(' ')
  return `${at > IDS_AROUND ? '… ' : ''}${words}${ids.length > at + 1 + IDS_AROUND ? ' …' : ''}`
}

function block(label: string, text: string, room: number): string[] {
  return wrap(text, room).map((words, i) => line(i === 0 ? label : '', words))
}

function line(label: string, text: string): string {
  return `${label.padEnd(LABEL)}${text}`.trimEnd()
}

export function formatSummary({ calls, edges, exact, reasons }: DriftSummary): string {
  const size = `the session has ${calls} ${calls === 1 ? 'call' : 'calls'}`
  if (edges === 0) return `No call continues another call; ${size}\n`
  const share = ((100 * exact) / edges).toFixed(0)
  const counts = Object.entries(reasons).toSorted(([, a], [, b]) => b - a)
  const widest = Math.max(0, ...counts.map(([reason]) => reason.length))
  const most = Math.max(1, ...counts.map(([, count]) => count))
  return [
    `${exact} of ${edges} continuations are exact (${share} %); ${size}`,
    ...counts.map(([reason, count]) => {
      const bar = '█'.repeat(Math.max(1, Math.round((20 * count) / most)))
      return `  ${reason.padEnd(widest)}  ${String(count).padStart(4)}  ${bar}`
    }),
    '',
  ].join('\n')
}
