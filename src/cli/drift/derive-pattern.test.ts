import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { compilePattern } from '../../gateway/quirks/rule-pattern.ts'
import { deriveVolatile } from './derive-pattern.ts'

/** Both texts with all derived pieces replaced. */
function stilled(before: string, now: string): [string, string] {
  const pieces = deriveVolatile(before, now)
  const apply = (text: string): string =>
    pieces.reduce((current, { find, replace }) => compilePattern(find)(current, replace), text)
  return [apply(before), apply(now)]
}

const around = (value: string): string => `You help people.\nIt is: ${value}.\nBe brief. Today is good.`

describe('deriveVolatile()', () => {
  test.each([
    ['time', '2026-11-15T06:30:13.123Z', '2026-11-16T07:31:14.009Z'],
    ['time', '10:00:59', '10:01:00'],
    ['time', '2026-11-15', '2026-11-16'],
    ['time', 'Sunday, Nov 15 2026', 'Monday, Nov 16 2026'],
    ['uuid', '123e4567-e89b-12d3-a456-426614174000', '00000000-e89b-12d3-a456-426614174fff'],
    ['hash', 'deadbeef01', '0badf00d99'],
    ['hash', 'a1b2c3', 'a1b2c4d5e6'],
    ['number', '9', '10'],
    ['number', '1763188213', '1763188214'],
    ['path', '/tmp/agent-aXbYcZ/work', '/tmp/agent-QwErTy/work'],
    ['id', 'req_01HXABCDEF', 'req_99ZZABCD'],
  ] as const)('recognises a %s: %s, %s', (kind, one, other) => {
    const [before, now] = [around(one), around(other)]
    const pieces = deriveVolatile(before, now)
    expect(pieces[0]?.kind).toBe(kind)
    const [a, b] = stilled(before, now)
    expect(a).toBe(before)
    expect(b).toBe(before)
  })

  test('finds several pieces in one text, each by the text before it', () => {
    const text = (time: string, count: number): string =>
      `Time now: ${time}\nA long line in between.\nTokens left: ${count}\n`
    const pieces = deriveVolatile(text('10:00', 900), text('10:05', 1000))
    expect(pieces.map(({ find }) => find)).toEqual([
      String.raw`Time now: [0-9]{2}:[0-9]{2}\n`,
      String.raw`Tokens left: [0-9]{1,20}\n`,
    ])
  })

  test('finds pieces at the start and at the end of a text', () => {
    expect(stilled('10:00 is the time', '10:01 is the time')[1]).toBe('10:00 is the time')
    expect(deriveVolatile('Seed: 1', 'Seed: 22')[0]?.find).toBe('Seed: [0-9]{1,20}$')
  })

  test.each([
    ['words were replaced', 'The build is green.', 'The build is red.'],
    ['words were added', 'Read it.', 'Read it twice, please.'],
    ['a line was removed', 'one\ntwo\n', 'one\n'],
    ['nothing differs', 'same', 'same'],
    [
      'no text before it identifies it',
      `${'.'.repeat(60)} 12 ${'.'.repeat(60)}`,
      `${'.'.repeat(60)} 13 ${'.'.repeat(60)}`,
    ],
  ])('returns nothing if %s', (_, before, now) => {
    expect(deriveVolatile(before, now)).toEqual([])
  })

  test('returns valid patterns that turn the later text into the earlier text', () => {
    const value = fc.oneof(
      fc
        .date({ noInvalidDate: true, min: new Date('2000-01-01'), max: new Date('2099-01-01') })
        .map((d) => d.toISOString()),
      fc.uuid(),
      fc.nat().map(String),
    )
    const words = fc.string({ unit: fc.constantFrom(...Array.from('abc \n.:"{}[]$^*🐙ü')), maxLength: 60 })
    fc.assert(
      fc.property(words, words, value, value, (left, right, one, other) => {
        const [before, now] = [`${left} at: ${one} ${right}`, `${left} at: ${other} ${right}`]
        const pieces = deriveVolatile(before, now)
        for (const { find } of pieces) compilePattern(find)
        if (pieces.length > 0) expect(stilled(before, now)[1]).toBe(before)
      }),
      { numRuns: 100 },
    )
  })
})
