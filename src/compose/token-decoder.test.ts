import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { startEngine } from '../../packages/tiny-engine/src/engine.ts'
import { embeddedModelFolder } from '../../packages/tiny-engine/src/model-package.ts'
import { loadTokenizer } from '../../packages/tiny-engine/src/tokenizer.ts'
import { visibleText, widthOf } from '../cli/drift/visible-text.ts'
import { loadVocabulary, openTokenSource, toVocabulary } from './token-decoder.ts'

const tiny = { origin: { engine: { kind: 'tiny' } } }
let dir: string
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), 'polar-vocabulary-'))
})
afterAll(() => rm(dir, { recursive: true, force: true }))

describe('loadVocabulary()', () => {
  test('returns the bytes of the tokenizer for every id', async () => {
    const [vocabulary, tokenizer] = await Promise.all([
      loadVocabulary(embeddedModelFolder()),
      loadTokenizer(embeddedModelFolder()),
    ])
    for (let id = 0; id < tokenizer.vocabularySize; id++) {
      expect([...(vocabulary.bytesOf(id) ?? [])]).toEqual([...tokenizer.bytesOf(id)])
      expect(vocabulary.isSpecial(id)).toBe(tokenizer.isSpecial(id))
    }
    expect(vocabulary.bytesOf(tokenizer.vocabularySize)).toBeUndefined()
  })

  test('reads SentencePiece vocabularies: spaces, bytes, lists with scores', () => {
    const { bytesOf, isSpecial } = toVocabulary({
      added_tokens: [{ id: 3, content: '</s>', special: true }],
      model: {
        type: 'Unigram',
        vocab: [
          ['<unk>', 0],
          ['▁Hello', -1],
          ['<0xE4>', -2],
          ['</s>', 0],
        ],
      },
    })
    expect([1, 2, 3].map((id) => Buffer.from(bytesOf(id) ?? []).toString('latin1'))).toEqual([' Hello', '\xe4', '</s>'])
    expect([isSpecial(2), isSpecial(3)]).toEqual([false, true])
  })

  test('names the problem of a folder', async () => {
    await expect(loadVocabulary(join(dir, 'none'))).rejects.toThrow(/tokenizer\.json cannot be read: ENOENT/)
    await writeFile(join(dir, 'tokenizer.json'), '{"model": {}}')
    await expect(loadVocabulary(dir)).rejects.toMatchObject({ code: 'config.invalid' })
  })
})

describe('openTokenSource()', () => {
  test('opens the built-in tokenizer for sessions of the tiny engine only', async () => {
    const source = await openTokenSource(tiny, {})
    expect(visibleText(Int32Array.of(1, 2), source?.whole)).toBe('<|im_start|><|im_end|>')
    expect(await openTokenSource({ origin: { engine: { kind: 'vllm' } } }, {})).toBeUndefined()
  })

  test('queries a running engine once for each id', async () => {
    await using engine = await startEngine({ script: 'default: { text: x }' })
    const tokenizer = await loadTokenizer(embeddedModelFolder())
    const ids = tokenizer.encode('Hello, hello 你好!\n')
    const source = await openTokenSource({ origin: {} }, { engine: { url: engine.url } })
    expect(source?.whole).toBeUndefined()
    const decoder = await source!.load(ids)
    expect(visibleText(ids, decoder)).toBe(String.raw`Hello, hello 你好!\n`)
    expect(visibleText(Int32Array.of(5000), decoder)).toBe('[5000]')
  })
})

describe('visibleText()', () => {
  test('shows control characters, half characters and unknown ids', () => {
    const bytes = [
      [0x61, 0x0a],
      [0xe4, 0xbd],
      [0xa0, 0x1b],
      [0xf0, 0x9f],
    ]
    const decoder = {
      bytesOf: (id: number) => (bytes[id] === undefined ? undefined : Uint8Array.from(bytes[id])),
      isSpecial: () => false,
    }
    expect(visibleText(Int32Array.of(0, 1, 2, 3, 9), decoder)).toBe(String.raw`a\n你\u{1b}\xF0\x9F[9]`)
    expect(visibleText(Int32Array.of(1), decoder)).toBe(String.raw`\xE4\xBD`)
    expect(visibleText(Int32Array.of(7, 8), undefined)).toBe(' 7 8')
  })

  test('computes widths as a terminal does', () => {
    expect([widthOf('abc'), widthOf('你好'), widthOf('e\u0301'), widthOf('🐙')]).toEqual([3, 4, 1, 2])
  })
})
