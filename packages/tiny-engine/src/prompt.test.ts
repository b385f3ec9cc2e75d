import fc from 'fast-check'
import { beforeAll, describe, expect, test } from 'vitest'
import { anyCodePoint } from '../../../test/support/any-code-point.ts'
import { embeddedModelFolder } from './model-package.ts'
import { checkPromptLength, fitGivenPrompt, fitRenderedPrompt, PromptEncoder, toPromptIds } from './prompt.ts'
import { loadTokenizer, type Tokenizer } from './tokenizer.ts'

let tokenizer: Tokenizer
beforeAll(async () => {
  tokenizer = await loadTokenizer(embeddedModelFolder())
})

describe('PromptEncoder', () => {
  test('returns the ids of the tokenizer, whatever is cached', () => {
    const encoder = new PromptEncoder(tokenizer)
    const piece = fc.oneof(
      fc.constantFrom(
        '<|im_start|>',
        '<|im_end|>',
        '<|endoftext|>',
        'user\n',
        '\n',
        ' ',
        'the same words again',
        '<|im_',
      ),
      fc.string({ unit: anyCodePoint, maxLength: 10 }),
    )
    fc.assert(
      fc.property(fc.array(piece, { maxLength: 12 }), (pieces) => {
        const text = pieces.join('').toWellFormed()
        expect(encoder.encode(text)).toEqual(tokenizer.encode(text))
      }),
      { numRuns: 500 },
    )
  })

  test('tokenises a piece once, and evicts the oldest pieces first', () => {
    const encoded: string[] = []
    const counting: Tokenizer = {
      ...tokenizer,
      encode: (text) => {
        encoded.push(text)
        return Int32Array.of(text.length)
      },
    }
    const encoder = new PromptEncoder(counting)
    encoder.encode('a<|im_end|>b')
    encoder.encode('a<|im_end|>b<|im_end|>c')
    expect(encoded).toEqual(['a', 'b', 'c'])
    encoder.encode('x'.repeat(7_999_999))
    encoder.encode('c')
    expect(encoded).toHaveLength(4)
    encoder.encode('a')
    expect(encoded).toHaveLength(5)
  })
})

const limits = {
  maxModelLen: 100,
  maxCharsPerToken: 8,
  maxTokens: undefined as number | undefined,
  maxTokensParam: 'max_tokens',
}
const prompt = (length: number) => () => new Int32Array(length)

describe('the limit of the answer', () => {
  test('is the rest of the context, or a lower requested limit', () => {
    expect(fitRenderedPrompt('x', prompt(30), limits).maxTokens).toBe(70)
    expect(fitRenderedPrompt('x', prompt(30), { ...limits, maxTokens: 5 }).maxTokens).toBe(5)
    expect(fitGivenPrompt(prompt(30)(), { ...limits, maxTokens: 90 }).maxTokens).toBe(70)
  })

  test('a rendered prompt must leave space for the requested limit; a prompt of ids need not', () => {
    expect(() => fitRenderedPrompt('x', prompt(30), { ...limits, maxTokens: 71 })).toThrow(
      /^This model's maximum context length is 100 tokens\. However, you requested 71 output tokens and your prompt contains at least 30 input tokens/,
    )
    expect(() => fitRenderedPrompt(undefined, prompt(50), { ...limits, maxTokens: 71 })).toThrow(
      'your prompt contains 50 input tokens, for a total of 121 tokens.',
    )
    expect(() => fitGivenPrompt(prompt(101)(), limits)).toThrow("Input length (101) exceeds model's maximum")
    expect(() => fitGivenPrompt(prompt(1)(), { ...limits, maxTokens: 101 })).toThrow('max_tokens=101 cannot be greater')
  })

  test('a text that cannot fit is rejected before it is tokenised', () => {
    const encode = () => {
      throw new Error('was tokenised')
    }
    expect(() => fitRenderedPrompt('x'.repeat(801), encode, limits)).toThrow(
      'contains 801 characters (more than 800 characters',
    )
  })

  test('every prompt must leave space for one output token', () => {
    expect(() => checkPromptLength(new Int32Array(0), 100)).toThrow('The decoder prompt cannot be empty')
    expect(() => checkPromptLength(new Int32Array(101), 100)).toThrow('is longer than the maximum model length of 100')
    expect(() => checkPromptLength(new Int32Array(100), 100)).toThrow(
      'plus the number of requested output tokens (at least 1)',
    )
    expect(() => toPromptIds([1, 6400], 6400)).toThrow('Token id 6400 is out of vocabulary')
  })
})
