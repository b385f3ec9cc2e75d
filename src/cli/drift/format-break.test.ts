import { readFileSync } from 'node:fs'
import { describe, expect, test } from 'vitest'
import type { CallNode, BreakReason } from '../../trajectory/graph/call-graph.ts'
import { ADVICE, adviceFor } from './advice.ts'
import { summariseDrift, type Break } from './find-breaks.ts'
import { formatBreak, formatSummary } from './format-break.ts'
import { widthOf } from './visible-text.ts'

/** One character a token. */
const decoder = { bytesOf: (id: number) => Buffer.from(String.fromCodePoint(id)), isSpecial: () => false }
const idsOf = (text: string): Int32Array => Int32Array.from(text, (character) => character.codePointAt(0)!)

function breakOf(before: string, now: string, reason: BreakReason = 'edited-history', forced = {}): Break {
  const [one, other] = [idsOf(before), idsOf(now)]
  const at = one.findIndex((id, i) => id !== other[i])
  const node = (index: number): CallNode => ({ turn: { index, forced } }) as unknown as CallNode
  return {
    node: node(4),
    from: node(2),
    reason,
    detail: 'why',
    at: at === -1 ? one.length : at,
    before: one,
    now: other,
  }
}

describe('formatBreak()', () => {
  const start = '系统: 你好 '.repeat(20)
  const found = breakOf(`${start}old words${' more'.repeat(50)}`, `${start}new words${' more'.repeat(50)}`)

  test.each([40, 80, 200])('fits a terminal of %i columns, the mark under the first difference', (width) => {
    const lines = formatBreak(found, decoder, { width }).split('\n')
    expect(Math.max(...lines.map(widthOf))).toBeLessThanOrEqual(width)
    const row = (label: string): string => lines.find((line) => line.startsWith(label))!
    const mark = lines.find((line) => line.includes('^ token'))!.indexOf('^')
    const column = (text: string, word: string): number => widthOf(text.slice(0, text.indexOf(word)))
    expect([column(row('before'), 'old'), column(row('now'), 'new')]).toEqual([mark, mark])
  })

  test('marks the end of a side, prints ids without a decoder, and does not repeat advice', () => {
    const ended = formatBreak(breakOf('abc', 'ab'), decoder, { width: 80, advised: 3 })
    expect(ended).toContain('now       ab(ends here)')
    expect(ended).toContain('change    as for call 3')
    expect(formatBreak(breakOf('ab', 'ac'), undefined, { width: 80 })).toContain('now        97 99')
  })
})

test('formatBreak() prints the ends of tokens if only the tokens differ', () => {
  const words: Record<number, string> = { 1: 'ab', 2: 'c', 3: 'a', 4: 'bc', 5: 'x' }
  const spelling = { bytesOf: (id: number) => Buffer.from(words[id] ?? ''), isSpecial: () => false }
  const found = { ...breakOf('ab', 'ac'), before: Int32Array.of(5, 1, 2), now: Int32Array.of(5, 3, 4) }
  const text = formatBreak({ ...found, at: 1 }, spelling, { width: 80 })
  expect(text).toContain('before    xab│c\nnow       xa│bc\n           ^ token 2 of 3')
})

test('adviceFor() mentions that the gateway did not continue token by token', () => {
  expect(adviceFor(breakOf('ab', 'ac', 'retokenised'))).toContain('did not continue token by token')
  const uncontinued = 'the engine accepts no prompt as ids'
  expect(adviceFor({ ...breakOf('ab', 'ac', 'retokenised'), uncontinued })).toContain(`here: ${uncontinued}.`)
  expect(adviceFor(breakOf('ab', 'ac', 'retokenised', { begins: 'media' }))).not.toContain('did not continue')
})

test('formatSummary() counts continuations and reasons', () => {
  const edges = [{ verdict: 'root' }, { verdict: 'exact' }, { verdict: 'forked', reason: 'unknown' }]
  const nodes = edges.map((edge) => ({ edge, turn: {} })) as unknown as CallNode[]
  const summary = summariseDrift({ nodes } as never)
  expect(summary).toEqual({ calls: 3, edges: 2, exact: 1, reasons: { unknown: 1 } })
  expect(formatSummary(summary)).toMatch(
    /^1 of 2 continuations are exact \(50 %\); the session has 3 calls\n {2}unknown +1 +█/,
  )
})

test('docs/drift.md explains every reason', () => {
  const page = readFileSync(new URL('../../../docs/drift.md', import.meta.url), 'utf8')
  for (const reason of Object.keys(ADVICE)) expect(page).toContain(`| \`${reason}\``)
})
