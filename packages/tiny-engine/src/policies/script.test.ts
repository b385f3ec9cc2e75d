import fc from 'fast-check'
import { beforeAll, describe, expect, test } from 'vitest'
import { embeddedModelFolder } from '../model-package.ts'
import { parseOutput } from '../output-parser.ts'
import { loadTokenizer, type Tokenizer } from '../tokenizer.ts'
import type { GenerationRequest, Policy, SampledToken, SamplingParams } from './policy.ts'
import { parseScript, type ScriptInput } from './script-schema.ts'
import {
  chooseStep,
  createScriptPolicy,
  findPlace,
  printArguments,
  readChatml,
  syntheticLogprob,
  toTurnText,
} from './script.ts'

let tokenizer: Tokenizer
beforeAll(async () => {
  tokenizer = await loadTokenizer(embeddedModelFolder())
})

const user = (content: unknown) => ({ role: 'user', content })
const assistant = (content = '') => ({ role: 'assistant', content })
const sampling: SamplingParams = {
  temperature: 0,
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

function request(messages: Record<string, unknown>[], more: Partial<GenerationRequest> = {}): GenerationRequest {
  const signal = new AbortController().signal
  return {
    id: 'r',
    promptIds: Int32Array.of(1, 2, 3),
    conversation: { messages, tools: [] },
    sampling,
    signal,
    ...more,
  }
}

async function play(policy: Policy, asked: GenerationRequest): Promise<SampledToken[]> {
  return Array.fromAsync((await policy.start(asked)).sample(0))
}

async function textOf(policy: Policy, asked: GenerationRequest): Promise<string> {
  return tokenizer.decode(
    (await play(policy, asked)).map(({ id }) => id),
    { skipSpecialTokens: true },
  )
}

function policyOf(script: ScriptInput): Policy {
  return createScriptPolicy(parseScript(script), { tokenizer })
}

describe('findPlace()', () => {
  test('finds the last user message with a marker and counts the assistant turns after it', () => {
    const messages = [
      user('SCRIPT:a'),
      assistant(),
      user('SCRIPT:b#7 please'),
      assistant(),
      { role: 'tool', content: '' },
      assistant(),
      user('go on'),
    ]
    expect(findPlace({ messages, tools: [] })).toEqual({ scenario: 'b', nonce: '7', turn: 2 })
  })

  test('reads content in parts, and ignores other roles', () => {
    expect(
      findPlace({
        messages: [
          user([
            { type: 'text', text: 'x' },
            { type: 'text', text: 'SCRIPT:a' },
          ]),
        ],
        tools: [],
      }),
    ).toEqual({
      scenario: 'a',
      nonce: '',
      turn: 0,
    })
    expect(
      findPlace({ messages: [{ role: 'system', content: 'SCRIPT:a' }, assistant('SCRIPT:a'), user(null)], tools: [] }),
    ).toBeUndefined()
  })
})

describe('chooseStep()', () => {
  const script = parseScript({
    scenarios: {
      a: [{ text: 'one' }, { tool_calls: [{ name: 'f' }] }, { text: 'two' }, { tool_calls: [{ name: 'g' }] }],
      calls: [{ tool_calls: [{ name: 'f' }] }],
    },
    order: [{ text: 'first' }, { text: 'second' }],
    default: { text: 'default' },
  })
  const at = (scenario: string, turn: number) => chooseStep(script, { scenario, nonce: '', turn }, () => 0).step

  test('returns the n-th turn, and after the end the last turn without calls, or the default', () => {
    expect(at('a', 0).text).toBe('one')
    expect(at('a', 3).tool_calls).toHaveLength(1)
    expect(at('a', 9).text).toBe('two')
    expect(at('calls', 1).text).toBe('default')
    expect(at('unknown', 0).text).toBe('default')
    expect(at('constructor', 0).text).toBe('default')
  })

  test('without a marker, returns turns in order of arrival', () => {
    const texts = (repeat: 'last' | 'cycle') =>
      [0, 1, 2, 3].map((number) => chooseStep({ ...script, repeat }, undefined, () => number).step.text)
    expect(texts('last')).toEqual(['first', 'second', 'second', 'second'])
    expect(texts('cycle')).toEqual(['first', 'second', 'first', 'second'])
    expect(() => chooseStep({ ...script, repeat: 'error' }, undefined, () => 2)).toThrow('this is request 3')
  })

  test('rejects a request without a turn', () => {
    const bare = parseScript({ scenarios: { a: [{ text: 'x' }] } })
    expect(() => chooseStep(bare, undefined, () => 0)).toThrow('no turn for a request without a marker')
    expect(() => chooseStep(bare, { scenario: 'b', nonce: '', turn: 1 }, () => 0)).toThrow('turn 2 of b')
  })
})

describe('createScriptPolicy()', () => {
  test('encodes a turn in canonical form with the end-of-turn id, so that parsing returns the turn', () => {
    const text = fc
      .string({ maxLength: 20 })
      .filter((words) => !words.includes('<') && (words === '' || words.trim() !== ''))
    const turn = fc.record({
      reasoning: fc.option(
        text.filter((words) => words !== ''),
        { nil: undefined },
      ),
      text,
      tool_calls: fc.array(
        fc.record({
          name: fc.stringMatching(/^[a-z_]{1,8}$/),
          arguments: fc.oneof(
            fc.dictionary(fc.string(), fc.jsonValue() as fc.Arbitrary<never>, { noNullPrototype: true }),
            text,
          ),
        }),
        { maxLength: 2 },
      ),
    })
    // zod drops members of this name; a script writes such arguments as a string.
    const named = turn.filter((step) => !JSON.stringify(step).includes('"__proto__"'))
    return fc.assert(
      fc.asyncProperty(named, async (step) => {
        const tokens = await play(policyOf({ default: step }), request([]))
        expect(tokens.at(-1)?.id).toBe(tokenizer.eosId)
        const sampled = tokenizer.decode(tokens.slice(0, -1).map(({ id }) => id))
        const parsed = parseOutput(sampled, { reasoning: true, tools: true })
        expect(parsed.reasoning).toBe(step.reasoning ?? '')
        expect(parsed.content).toBe(step.text)
        expect(parsed.toolCalls.map(({ name }) => name)).toEqual(step.tool_calls.map(({ name }) => name))
        for (const [i, call] of step.tool_calls.entries()) {
          const given = parsed.toolCalls[i]?.arguments ?? ''
          if (typeof call.arguments === 'string') expect(given).toBe(call.arguments)
          else expect(JSON.parse(given)).toEqual(JSON.parse(JSON.stringify(call.arguments)))
        }
      }),
      { numRuns: 200 },
    )
  })

  test('log probabilities depend only on the id and the ids before it', async () => {
    const policy = policyOf({ default: { text: 'The same words.' } })
    const once = await play(policy, request([]))
    expect(await play(policy, request([]))).toEqual(once)
    const elsewhere = await play(policy, request([], { promptIds: Int32Array.of(1, 2, 4) }))
    expect(elsewhere.map(({ id }) => id)).toEqual(once.map(({ id }) => id))
    expect(elsewhere[0]?.logprob).not.toBe(once[0]?.logprob)
    for (const { logprob } of once) {
      expect(logprob).toBeLessThanOrEqual(0)
      expect(Math.fround(logprob)).toBe(logprob)
    }
  })

  test('the likeliest tokens contain the sampled token, are in descending order, and sum to at most one', async () => {
    const policy = policyOf({ default: { text: 'A few words to look at.' } })
    for (const topLogprobs of [1, 5, -1]) {
      for (const token of await play(policy, request([], { sampling: { ...sampling, topLogprobs } }))) {
        expect(token.top).toHaveLength(topLogprobs === -1 ? tokenizer.vocabularySize : topLogprobs)
        expect(token.top[token.rank]).toEqual({ id: token.id, logprob: token.logprob })
        expect(new Set(token.top.map(({ id }) => id)).size).toBe(token.top.length)
        expect(token.top.toSorted((a, b) => b.logprob - a.logprob)).toEqual(token.top)
        expect(token.top.reduce((sum, { logprob }) => sum + Math.exp(logprob), 0)).toBeLessThan(1.0001)
      }
    }
  })

  test('ends without an end-of-turn id if the turn is truncated', async () => {
    const tokens = await play(policyOf({ default: { text: 'cut', finish: 'length' } }), request([]))
    expect(tokens.map(({ id }) => id)).toEqual([...tokenizer.encode('cut')])
  })

  test('generates load: the configured number of ordinary tokens, identical each time', async () => {
    const policy = policyOf({ default: { tokens: 2000 } })
    const ids = (await play(policy, request([]))).map(({ id }) => id)
    expect(ids).toHaveLength(2001)
    expect((await play(policy, request([]))).map(({ id }) => id)).toEqual(ids)
    expect(tokenizer.decode(ids.slice(0, -1))).toMatch(/^[A-Za-z ]+$/)
    expect(new Set(ids).size).toBeGreaterThan(500)
  })

  test('injects faults in order, each the configured number of times, and counts each nonce separately', async () => {
    const policy = policyOf({
      scenarios: {
        a: [
          {
            text: 'x',
            fault: [
              { kind: 'status', status: 503, times: 2 },
              { kind: 'reset', times: 1 },
            ],
          },
        ],
      },
    })
    const faults = async (marker: string, count: number) => {
      const kinds: (string | undefined)[] = []
      for (let i = 0; i < count; i++) kinds.push((await policy.start(request([user(marker)]))).fault?.kind)
      return kinds
    }
    expect(await faults('SCRIPT:a#1', 4)).toEqual(['status', 'status', 'reset', undefined])
    expect(await faults('SCRIPT:a#2', 2)).toEqual(['status', 'status'])
    expect(await faults('SCRIPT:a', 1)).toEqual(['status'])
  })

  test('finds the marker in a prompt of ids', async () => {
    const policy = policyOf({ scenarios: { a: [{ text: 'one' }, { text: 'two' }] } })
    const prompt =
      '<|im_start|>user\nSCRIPT:a<|im_end|>\n<|im_start|>assistant\none<|im_end|>\n<|im_start|>user\n<tool_response>\nSCRIPT:b\n</tool_response><|im_end|>\n<|im_start|>assistant\n'
    expect(await textOf(policy, request([], { conversation: undefined, promptIds: tokenizer.encode(prompt) }))).toBe(
      'two',
    )
  })

  test('waits for the configured delay, and an abort ends the wait', async () => {
    const policy = policyOf({ default: { text: 'a b c', first_token_ms: 30, per_token_ms: 10 } })
    const before = performance.now()
    const tokens = await play(policy, request([]))
    expect(performance.now() - before).toBeGreaterThanOrEqual(25 + (tokens.length - 1) * 10)
    const controller = new AbortController()
    setTimeout(() => controller.abort(new Error('enough')), 20)
    const slow = policyOf({ default: { text: 'a', first_token_ms: 60_000 } })
    await expect(play(slow, request([], { signal: controller.signal }))).rejects.toThrow('enough')
  })

  test('computes log probabilities with the model if the script requests it', async () => {
    const script = parseScript({ default: { text: 'x' }, logprobs: 'model' })
    const policy = createScriptPolicy(script, {
      tokenizer,
      score: async (_prompt, ids) => new Float32Array(ids.length).fill(-0.5),
    })
    expect((await play(policy, request([]))).map(({ logprob }) => logprob)).toEqual([-0.5, -0.5])
    expect(() => createScriptPolicy(script, { tokenizer })).toThrow('no model is loaded')
  })
})

test('toTurnText() returns the text of the chat template', () => {
  expect(
    toTurnText({
      reasoning: 'R',
      text: 'A',
      tool_calls: [
        { name: 'f', arguments: { a: [1, 'x'] } },
        { name: 'g', arguments: '{"b": ' },
      ],
    }),
  ).toBe(
    '<think>\nR\n</think>\n\nA\n<tool_call>\n{"name": "f", "arguments": {"a": [1, "x"]}}\n</tool_call>\n<tool_call>\n{"name": "g", "arguments": {"b": }\n</tool_call>',
  )
  expect(toTurnText({ tool_calls: [{ name: 'f', arguments: {} }] })).toBe(
    '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>',
  )
})

test('printArguments() escapes a closing tag without changing the value', () => {
  const value = { 'k</tool_call>': 'echo </tool_call>' }
  expect(printArguments(value)).not.toContain('</tool_call>')
  expect(JSON.parse(printArguments(value))).toEqual(value)
})

test('readChatml() parses closed messages and distinguishes tool results from user messages', () => {
  expect(
    readChatml(
      '<|im_start|>system\nS<|im_end|>\n<|im_start|>user\n<tool_response>\nr\n</tool_response><|im_end|>\n<|im_start|>assistant\nop',
    ),
  ).toEqual([
    { role: 'system', content: 'S' },
    { role: 'tool', content: '<tool_response>\nr\n</tool_response>' },
  ])
})

test('syntheticLogprob() is finite and not positive for every hash', () => {
  fc.assert(
    fc.property(fc.integer(), (hash) => {
      const value = syntheticLogprob(hash)
      expect(value).toBeLessThanOrEqual(0)
      expect(value).toBeGreaterThanOrEqual(-6)
    }),
  )
})
