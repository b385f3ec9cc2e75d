import { describe, expect, test } from 'vitest'
import { createLlamacpp, mergeAnswers } from './llamacpp.ts'
import { describeUpstream } from './upstream.contract.ts'

describeUpstream('llama.cpp', {
  create: createLlamacpp,
  engine: { wire: 'llamacpp' },
  isFreeUnderGrammar: true,
  capabilities: {
    idsOut: true,
    idsInStreams: 'lossy',
    tokenIn: 'completions',
    toolFormat: 'hermes',
    render: 'template',
    weightVersion: false,
    logprobs: 'raw',
    contextTokens: 32_768,
  },
  grade: 'exact',
  // Tokens that end within a character, and tokens of a stop string, have no log probabilities.
  lesserGrades: { unicode: 'inferred', stopString: 'inferred' },
  findsPromptIds: true,
})

describe('mergeAnswers()', () => {
  const prompt = { text: '<|im_start|>user\nhi', ids: Int32Array.of(1, 2, 3) }
  const answer = (native: object, usage = { prompt_tokens: 3, completion_tokens: 2 }) => ({
    id: 'a',
    choices: [{ index: 0, message: { content: 'x' }, finish_reason: 'stop' }],
    usage,
    __verbose: { tokens: [7, 8], prompt: prompt.text, truncated: false, stop_type: 'eos', ...native },
  })

  test('merges several answers, without the native fields', () => {
    const { answer: merged, doubts } = mergeAnswers([answer({}), answer({ tokens: [9] })], prompt, 4096)
    expect(merged).toEqual({
      id: 'a',
      choices: [
        { index: 0, message: { content: 'x' }, finish_reason: 'stop', token_ids: [7, 8] },
        { index: 1, message: { content: 'x' }, finish_reason: 'stop', token_ids: [9] },
      ],
      prompt_token_ids: [1, 2, 3],
      usage: { prompt_tokens: 3, completion_tokens: 4, total_tokens: 7 },
    })
    expect(doubts).toEqual([])
  })

  test.each([
    ['context that was shifted', { truncated: true }, 'threw part of the context away'],
    ['a limit reached by shifting', { truncated: true, stop_type: 'limit' }, 'threw part of the context away'],
    ['another prompt', { prompt: '<|im_start|>user\nbye' }, 'another prompt than /apply-template'],
  ])('doubts %s', (_, native, words) => {
    const usage = { prompt_tokens: 3, completion_tokens: 9 }
    expect(mergeAnswers([answer(native, usage)], prompt, 10).doubts).toMatchObject([expect.stringContaining(words)])
  })

  test('has no doubt about an answer that exactly filled the context or begins with an extra token', () => {
    const full = answer({ truncated: true, stop_type: 'limit' }, { prompt_tokens: 3, completion_tokens: 7 })
    expect(mergeAnswers([full], prompt, 10).doubts).toEqual([])
    expect(mergeAnswers([answer({ prompt: `<s> ${prompt.text}` })], prompt, 10).doubts).toEqual([])
  })
})
