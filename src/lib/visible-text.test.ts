import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { activeIn, anyHostileText } from '../../test/support/hostile-text.ts'
import { toHangingText, toVisibleJson, toVisibleLine, toVisibleText } from './visible-text.ts'

describe('untrusted text for a terminal', () => {
  test('has no hidden characters, and the expected number of lines', () => {
    fc.assert(
      fc.property(anyHostileText, (text) => {
        expect(activeIn(toVisibleLine(text))).toBeUndefined()
        expect(toVisibleLine(text)).not.toContain('\n')
        expect(activeIn(toVisibleText(text))).toBeUndefined()
        expect(toVisibleText(text).split('\n')).toHaveLength(text.split('\n').length)
        for (const line of toHangingText(text, 4).split('\n').slice(1)) expect(line).toMatch(/^ {4}/)
      }),
    )
  })

  test('is unchanged without hidden characters, also when it is converted twice', () => {
    expect(toVisibleLine('naïve 漢字 🙂 — "x" \\n')).toBe('naïve 漢字 🙂 — "x" \\n')
    fc.assert(
      fc.property(anyHostileText, (text) => {
        expect(toVisibleText(toVisibleText(text))).toBe(toVisibleText(text))
      }),
    )
  })

  test('shows each hidden character by its number', () => {
    expect(toVisibleLine('a\x1b[31mb\r\n\u202ec\x9b\u{e0041}')).toBe('a\\u{1b}[31mb\\r\\n\\u{202e}c\\u{9b}\\u{e0041}')
    expect(toVisibleText('a\tb\r\nc\rd')).toBe('a    b\nc\\rd')
  })
})

test('JSON keeps its values exactly, and has no hidden character', () => {
  fc.assert(
    fc.property(fc.jsonValue({ stringUnit: 'binary' }), anyHostileText, (value, text) => {
      const json = toVisibleJson(JSON.stringify({ value, text }, null, 2))
      expect(activeIn(json)).toBeUndefined()
      expect(JSON.parse(json)).toEqual(JSON.parse(JSON.stringify({ value, text })))
    }),
  )
})
