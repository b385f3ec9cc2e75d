import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { SseParser, formatSse, type SseMessage } from './sse.ts'

function parseAll(chunks: readonly Uint8Array[]): SseMessage[] {
  const parser = new SseParser()
  return chunks.flatMap((chunk) => parser.push(chunk))
}

function cut(bytes: Uint8Array, places: readonly number[]): Uint8Array[] {
  const sorted = [...places].map((place) => place % (bytes.length + 1)).sort((a, b) => a - b)
  const edges = [0, ...sorted, bytes.length]
  return edges.slice(1).map((edge, i) => bytes.subarray(edges[i], edge))
}

const anyText = fc.string({ unit: 'grapheme' }).map((text) => text.replaceAll(/[\r\n]/g, ''))
const anyMessage = fc.record(
  { event: anyText.filter((text) => text !== ''), data: fc.array(anyText, { minLength: 1, maxLength: 3 }) },
  { requiredKeys: ['data'] },
)

describe('SseParser', () => {
  test('returns the same messages for any division into chunks and any line end', () => {
    fc.assert(
      fc.property(
        fc.array(anyMessage),
        fc.constantFrom('\n', '\r\n', '\r'),
        fc.array(fc.nat()),
        (messages, newline, places) => {
          const text = messages.map((m) => `: a comment\n${formatSse(m.data.join('\n'), m.event)}`).join('')
          const bytes = new TextEncoder().encode(text.replaceAll('\n', newline))
          const expected = messages.map((m) => ({ ...m, data: m.data.join('\n') }))
          expect(parseAll(cut(bytes, places))).toEqual(expected)
          expect(parseAll([...bytes].map((byte) => Uint8Array.of(byte)))).toEqual(expected)
        },
      ),
    )
  })

  test('drops an event without a final empty line, and a byte order mark', () => {
    const bytes = new TextEncoder().encode('\uFEFFdata: one\n\ndata: two\n')
    expect(parseAll([bytes])).toEqual([{ data: 'one' }])
  })

  test('accepts a field without colon or space, and ignores unknown fields', () => {
    const bytes = new TextEncoder().encode('data\n\ndata:x\nid: 7\nretry: 1\nfoo: bar\n\n')
    expect(parseAll([bytes])).toEqual([{ data: '' }, { data: 'x', id: '7' }])
  })

  test('rejects an event that exceeds the size limit', () => {
    const parser = new SseParser({ maxEventChars: 100 })
    expect(() => {
      for (let i = 0; i < 20; i++) parser.push(new TextEncoder().encode('data: 0123456789\n'))
    }).toThrow(RangeError)
  })
})
