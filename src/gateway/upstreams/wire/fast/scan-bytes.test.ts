import fc from 'fast-check'
import { expect, test } from 'vitest'
import { parseJson } from '../../../../lib/json/json-text.ts'
import { anyCodePoint } from '../../../../../test/support/any-code-point.ts'
import { isAt, scanIds, scanLogprobs, scanString, toConstant, toSource } from './scan-bytes.ts'
import { toLogprob } from '../to-logprob.ts'
import { runs } from '../../../../../test/support/runs.ts'

const RUNS = { numRuns: runs(5000) }

function scanNumber(text: string): number | undefined {
  const source = toSource(Buffer.from(`{"token":"","logprob":${text},"bytes":[],"top_logprobs":[]}]`))
  const into = { values: new Float32Array(1), length: 0 }
  return scanLogprobs(source, 0, into) === -1 ? undefined : into.values[0]
}

function parseNumber(text: string): number | undefined {
  try {
    const value: unknown = JSON.parse(text)
    return typeof value === 'number' ? Math.fround(toLogprob(value)) : undefined
  } catch {
    return undefined
  }
}

/** The next 32-bit float away from zero. */
function next(value: number): number {
  const bits = new Int32Array(Float32Array.of(value).buffer)
  return new Float32Array(Int32Array.of((bits[0] as number) + 1).buffer)[0] as number
}

test('scanLogprobs() gives the 32-bit float of JSON.parse and rounding, also between two floats', () => {
  const anyFloat = fc.float({ min: Math.fround(-9.9), max: Math.fround(-1e-12), noNaN: true })
  const anyDigits = fc.integer({ min: 9, max: 24 })
  const anyOffset = fc.oneof(fc.constant(0), fc.double({ min: -1e-6, max: 1e-6, noNaN: true }))
  fc.assert(
    fc.property(anyFloat, anyDigits, anyOffset, fc.boolean(), (value, digits, offset, isPlain) => {
      const edge = (value + next(value)) / 2
      const number = edge + (edge - value) * offset
      const text = isPlain ? number.toFixed(digits) : number.toExponential(digits).replace(/e-(\d)$/, 'e-0$1')
      expect(scanNumber(text)).toBe(parseNumber(text))
    }),
    RUNS,
  )
})

test('scanLogprobs() gives the number of JSON.parse in any notation, or fails', () => {
  const anyNumber = fc.oneof(
    fc.double({ noNaN: true, noDefaultInfinity: true }).map(String),
    fc.float({ noNaN: true, noDefaultInfinity: true }).map(String),
    fc.stringMatching(/^-?[0-9]{0,3}\.?[0-9]{0,22}([eE][+-]?[0-9]{0,3})?$/),
    fc.stringMatching(/^-?0\.[0-9]{12,22}(e-[0-9]{2})?$/),
  )
  fc.assert(
    fc.property(anyNumber, (text) => {
      expect(scanNumber(text)).toBe(parseNumber(text))
    }),
    RUNS,
  )
})

test('scanIds() gives the list of JSON.parse, or fails', () => {
  const anyList = fc.oneof(
    fc.array(fc.nat(999_999_999)).map((ids) => JSON.stringify(ids)),
    fc.stringMatching(/^\[[0-9,]{0,12}\]$/),
  )
  fc.assert(
    fc.property(anyList, (text) => {
      const into = { values: new Int32Array(16), length: 0 }
      const end = scanIds(toSource(Buffer.from(text)), 1, into)
      if (end === -1) return
      expect([...into.values.subarray(0, into.length)]).toEqual(JSON.parse(text.slice(0, end + 1)))
    }),
    RUNS,
  )
})

test('scanString() finds the end of a JSON string, or fails', () => {
  const anyString = fc.oneof(
    fc.string({ unit: anyCodePoint }).map((text) => JSON.stringify(text)),
    fc.stringMatching(/^"[\\"/bfnrtu0-9a-fA-F~é]{0,10}"$/).map((text) => text.replaceAll('~', '\u0001')),
  )
  fc.assert(
    fc.property(anyString, (text) => {
      const bytes = Buffer.from(text)
      const end = scanString(toSource(bytes), 1)
      // The first quote up to which JSON.parse accepts the text.
      const quotes = [...bytes.keys()].filter((at) => at > 0 && bytes[at] === 0x22)
      expect(end).toBe(quotes.find((at) => parseJson(bytes.toString('utf8', 0, at + 1)) !== undefined) ?? -1)
    }),
    RUNS,
  )
})

test('isAt() compares constants of every length, and never beyond the end', () => {
  const text = 'data: {"id":"chatcmpl-1","choices":[]}'
  for (let length = 4; length < text.length; length++) {
    const constant = toConstant(text.slice(0, length))
    expect(isAt(toSource(Buffer.from(`xyz${text}`)), 3, constant)).toBe(true)
    expect(isAt(toSource(Buffer.from(text.slice(0, length - 1))), 0, constant)).toBe(false)
    for (let at = 0; at < length; at++) {
      const other = `${text.slice(0, at)}~${text.slice(at + 1)}`
      expect(isAt(toSource(Buffer.from(other)), 0, constant)).toBe(false)
    }
  }
})
