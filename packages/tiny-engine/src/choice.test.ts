import fc from 'fast-check'
import { beforeAll, describe, expect, test } from 'vitest'
import { Choice, TokenTexts } from './choice.ts'
import { embeddedModelFolder } from './model-package.ts'
import type { SamplingParams } from './policies/policy.ts'
import { loadTokenizer } from './tokenizer.ts'

let texts: TokenTexts
beforeAll(async () => {
  texts = new TokenTexts(await loadTokenizer(embeddedModelFolder()))
})

const defaults: SamplingParams = {
  temperature: 1,
  topP: 1,
  topK: 0,
  minP: 0,
  repetitionPenalty: 1,
  presencePenalty: 0,
  frequencyPenalty: 0,
  logitBias: new Map(),
  maxTokens: 1000,
  minTokens: 0,
  stop: [],
  stopTokenIds: [],
  ignoreEos: false,
  n: 1,
  topLogprobs: 0,
}

interface Sampled {
  choice: Choice
  released: string[]
  /** Number of tokens read until the choice ended. */
  read: number
}

function sample(
  ids: Iterable<number>,
  sampling: Partial<SamplingParams> = {},
  options: { includeStop?: boolean } = {},
): Sampled {
  const choice = new Choice(0, texts, {
    sampling: { ...defaults, ...sampling },
    maxLength: 1000,
    includeStop: options.includeStop ?? false,
    skipSpecialTokens: true,
  })
  const released: string[] = []
  let read = 0
  for (const id of ids) {
    read += 1
    released.push(choice.push({ id, logprob: -1, rank: 0, top: [] }))
    if (choice.finish) return { choice, released, read }
  }
  released.push(choice.end())
  return { choice, released, read }
}

function encode(text: string): number[] {
  return [...texts.tokenizer.encode(text, { parseSpecial: false })]
}

describe('Choice', () => {
  test('contains the end-of-turn id in the ids and not in the text', () => {
    const { choice } = sample([...encode('Hello'), texts.tokenizer.eosId, ...encode(' more')])
    expect(choice.text).toBe('Hello')
    expect(choice.ids.at(-1)).toBe(texts.tokenizer.eosId)
    expect(choice.finish).toEqual({ reason: 'stop', stopReason: null })
  })

  test('ends at a stop id, contains it in the ids, and reports it as the reason', () => {
    const [first = 0, second = 0] = encode('Hello world')
    const { choice } = sample([first, second], { stopTokenIds: [second] })
    expect(choice.ids).toEqual([first, second])
    expect(choice.text).toBe(texts.tokenizer.tokenText(first))
    expect(choice.finish).toEqual({ reason: 'stop', stopReason: second })
  })

  test('contains the text of a stop id if the stop is included', () => {
    const ids = encode('Hello world')
    const { choice } = sample(ids, { stopTokenIds: [ids.at(-1) ?? 0] }, { includeStop: true })
    expect(choice.text).toBe('Hello world')
  })

  test('ends by length at the limit, and if the policy has no more tokens', () => {
    const ids = encode('one two three four')
    expect(sample(ids, { maxTokens: 2 })).toMatchObject({ read: 2, choice: { finish: { reason: 'length' } } })
    expect(sample(ids).choice.finish).toEqual({ reason: 'length', stopReason: null })
  })

  test('ignores the end of turn with ignore_eos', () => {
    const ids = [...encode('a'), texts.tokenizer.eosId, ...encode('b')]
    expect(sample(ids, { ignoreEos: true }).choice.text).toBe('ab')
  })

  test('does not stop before min_tokens', () => {
    const { eosId } = texts.tokenizer
    const x = encode('x')[0] ?? 0
    expect(sample([eosId, x, eosId, x], { minTokens: 2 })).toMatchObject({ read: 3, choice: { text: 'x' } })
    expect(sample([x, x, x, x], { minTokens: 2, stop: ['x'] })).toMatchObject({ read: 3, choice: { text: 'xx' } })
  })

  test('a stop string truncates the text and not the ids, and the token that completes it is the last token', () => {
    const ids = encode('Hello big world')
    const { choice, read } = sample(ids, { stop: ['big'] })
    expect(choice.text).toBe('Hello ')
    expect(choice.ids).toEqual(ids.slice(0, read))
    expect(texts.tokenizer.decode(choice.ids)).toContain('big')
    expect(choice.finish).toEqual({ reason: 'stop', stopReason: 'big' })
  })

  test('the stop string that ends first takes precedence', () => {
    const { choice } = sample(encode('abcdef'), { stop: ['cdef', 'bc'] })
    expect(choice.finish?.stopReason).toBe('bc')
    expect(choice.text).toBe('a')
  })

  test('a stop string found with the last allowed token is a stop', () => {
    const ids = encode('abc')
    expect(sample(ids, { stop: ['c'], maxTokens: ids.length }).choice.finish).toEqual({
      reason: 'stop',
      stopReason: 'c',
    })
  })

  test('holds back one character less than the longest stop string, and releases the text at the end', () => {
    const ids = encode('abcdefgh')
    const { released, choice } = sample(ids, { stop: ['WXYZ'] })
    let shown = ''
    let seen = ''
    for (const [i, id] of ids.entries()) {
      shown += released[i]
      seen += texts.tokenizer.tokenText(id)
      expect(seen.length - shown.length).toBe(Math.min(3, seen.length))
    }
    expect(choice.text).toBe('abcdefgh')
  })

  test('releases text immediately if the stop is included', () => {
    const ids = encode('abcdefgh')
    expect(sample(ids, { stop: ['WXYZ'] }, { includeStop: true }).released.slice(0, -1)).toEqual(
      ids.map((id) => texts.tokenizer.tokenText(id)),
    )
    expect(sample(ids, { stop: ['bcd'] }, { includeStop: true }).choice.text).toBe('abcd')
  })

  test('never splits a surrogate pair', () => {
    const { released } = sample(encode('a😀b😀c'), { stop: ['xy'] })
    for (const text of released) expect(text.isWellFormed()).toBe(true)
    expect(released.join('')).toBe('a😀b😀c')
  })

  test('omits an unfinished character at the end', () => {
    const [first = 0] = encode('😀')
    expect(texts.wholeText(first)).toBeUndefined()
    expect(sample([...encode('a'), first]).choice.text).toBe('a')
  })

  test('the text equals the decoded ids, and stop strings are found as in the whole text', () => {
    const stops = fc.array(fc.string({ unit: fc.constantFrom('a', 'b', '界', '😀'), minLength: 1, maxLength: 4 }), {
      maxLength: 3,
    })
    const words = fc.string({ unit: fc.constantFrom('a', 'b', 'c', '界', '😀', ' '), maxLength: 30 })
    fc.assert(
      fc.property(words, stops, (text, stop) => {
        const { choice, released } = sample(encode(text), { stop })
        expect(released.join('')).toBe(choice.text)
        if (choice.finish?.reason === 'length') {
          expect(choice.text).toBe(text)
          for (const word of stop) expect(text.includes(word)).toBe(false)
        } else {
          const word = choice.finish?.stopReason as string
          expect(stop).toContain(word)
          expect(text.startsWith(choice.text + word)).toBe(true)
          for (const other of stop) expect(choice.text.includes(other)).toBe(false)
        }
      }),
      { numRuns: 1000 },
    )
  })
})

describe('TokenTexts', () => {
  test('assigns a character to the token that completes it', () => {
    const ids = encode('😀')
    expect(ids.length).toBeGreaterThan(1)
    const shown = ids.map((id, i) => texts.textInContext(id, ids.slice(0, i)))
    expect(shown).toEqual([...ids.slice(1).map(() => ''), '😀'])
  })

  test('returns the text of tokens that are whole characters', () => {
    for (const id of encode('Hello 世界')) expect(texts.wholeText(id)).toBe(texts.tokenizer.tokenText(id))
    expect(texts.json(encode('"')[0] ?? 0)).toEqual({ head: '{"token":"\\"","logprob":', tail: ',"bytes":[34]' })
  })
})
