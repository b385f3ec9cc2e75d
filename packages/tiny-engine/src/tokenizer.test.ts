import { readFile } from 'node:fs/promises'
import fc from 'fast-check'
import { beforeAll, expect, test } from 'vitest'
import { anyCodePoint } from '../../../test/support/any-code-point.ts'
import { embeddedModelFolder } from './model-package.ts'
import { createTokenizer, IncrementalDecoder, loadTokenizer } from './tokenizer.ts'
import type { Tokenizer } from './tokenizer.ts'

const golden = JSON.parse(await readFile(new URL('golden/tokenizer.golden.json', import.meta.url), 'utf8')) as {
  encoded: { text: string; ids: number[] }[]
  decoded: { ids: number[]; text: string; skipped: string }[]
}

let tokenizer: Tokenizer
beforeAll(async () => {
  tokenizer = await loadTokenizer(embeddedModelFolder())
})

const anyIds = () => fc.array(fc.nat({ max: tokenizer.vocabularySize - 1 }), { maxLength: 40 })
/** Low ids are single bytes and short pieces, so characters are divided in all ways. */
const brokenIds = () => fc.array(fc.oneof(fc.nat({ max: 300 }), fc.nat({ max: 6399 })), { maxLength: 40 })
const anyText = () =>
  fc.string({
    unit: fc.oneof(
      fc.constantFrom(' ', '\n', '\ufeff', '\u0085', "'s", '<|im_end|>'),
      fc.string({ unit: anyCodePoint }),
    ),
  })

test('encode() returns the ids of the Rust tokenizer', () => {
  for (const { text, ids } of golden.encoded) expect([text, [...tokenizer.encode(text)]]).toEqual([text, ids])
})

test('decode() returns the text of the Rust tokenizer', () => {
  for (const { ids, text, skipped } of golden.decoded) {
    expect(tokenizer.decode(ids)).toBe(text)
    expect(tokenizer.decode(ids, { skipSpecialTokens: true })).toBe(skipped)
  }
})

test('decode() undoes encode()', () => {
  fc.assert(
    fc.property(anyText(), fc.boolean(), (text, parseSpecial) => {
      expect(tokenizer.decode(tokenizer.encode(text, { parseSpecial }))).toBe(text.toWellFormed())
    }),
  )
})

test('encode() encodes special strings as ordinary characters by option', () => {
  expect([...tokenizer.encode('<|im_end|>')]).toEqual([2])
  const ids = [...tokenizer.encode('a<|im_end|>', { parseSpecial: false })]
  expect(ids.some((id) => tokenizer.isSpecial(id))).toBe(false)
  expect(tokenizer.decode(ids, { skipSpecialTokens: true })).toBe('a<|im_end|>')
})

test('the concatenated bytesOf() are the bytes of the text', () => {
  fc.assert(
    fc.property(anyText(), (text) => {
      const bytes = [...tokenizer.encode(text)].flatMap((id) => [...tokenizer.bytesOf(id)])
      expect(bytes).toEqual([...new TextEncoder().encode(text)])
    }),
  )
})

test('every id of the vocabulary has a name, bytes and text', () => {
  for (let id = 0; id < tokenizer.vocabularySize; id++) {
    expect(tokenizer.bytesOf(id).length).toBeGreaterThan(0)
    expect(tokenizer.tokenText(id)).toBe(tokenizer.decode([id]))
    expect(tokenizer.tokenName(id).length).toBe(
      tokenizer.isSpecial(id) ? tokenizer.tokenText(id).length : tokenizer.bytesOf(id).length,
    )
  }
  expect(tokenizer.vocabularySize).toBe(6400)
  expect(tokenizer.eosId).toBe(2)
  expect(tokenizer.tokenName(2)).toBe('<|im_end|>')
})

test('ids outside the vocabulary are rejected', () => {
  expect(() => tokenizer.decode([6400])).toThrow(RangeError)
  expect(() => tokenizer.bytesOf(-1)).toThrow(RangeError)
})

test('the pieces of IncrementalDecoder together equal decode()', () => {
  fc.assert(
    fc.property(fc.oneof(anyIds(), brokenIds()), fc.boolean(), (ids, skipSpecialTokens) => {
      const decoder = new IncrementalDecoder(tokenizer, { skipSpecialTokens })
      const text = ids.map((id) => decoder.push(id)).join('') + decoder.flush()
      const bytes = ids.flatMap((id) =>
        skipSpecialTokens && tokenizer.isSpecial(id) ? [] : [...tokenizer.bytesOf(id)],
      )
      expect(text).toBe(new TextDecoder('utf-8', { ignoreBOM: true }).decode(Uint8Array.from(bytes)))
      expect(text).toBe(tokenizer.decode(ids, { skipSpecialTokens }))
    }),
    { numRuns: 1000 },
  )
})

test('IncrementalDecoder releases a character with its last byte', () => {
  const clock = [...tokenizer.encode('🕰')]
  expect(clock.length).toBeGreaterThan(1)
  const decoder = new IncrementalDecoder(tokenizer)
  expect(clock.map((id) => decoder.push(id))).toEqual([...clock.slice(1).map(() => ''), '🕰'])
  expect(decoder.push(clock[0]!)).toBe('')
  expect(decoder.flush()).toBe('\ufffd')
  expect(decoder.push(tokenizer.encode('x')[0]!)).toBe('x')
})

test('createTokenizer() rejects an unsupported file', () => {
  expect(() => createTokenizer({ model: { type: 'Unigram' } }, {})).toThrow()
})
