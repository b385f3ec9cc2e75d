import fc from 'fast-check'
import { beforeAll, describe, expect, test } from 'vitest'
import { loadChatTemplate, type ChatTemplate } from '../../packages/tiny-engine/src/chat-template.ts'
import { embeddedModelFolder } from '../../packages/tiny-engine/src/model-package.ts'
import { loadTokenizer, type Tokenizer } from '../../packages/tiny-engine/src/tokenizer.ts'
import { textOf, type AssistantMessage, type Message, type Tool } from '../model/message.ts'
import type { Provenance, Span } from '../model/sample.ts'
import type { Turn, TurnRequest } from '../model/turn.ts'
import { createAttribution } from './attribute-context.ts'
import type { CallNode, Edge, RequestReader } from './graph/call-graph.ts'
import { cpuTimeMs } from '../../test/support/cpu-time.ts'

let tokenizer: Tokenizer
let template: ChatTemplate
beforeAll(async () => {
  tokenizer = await loadTokenizer(embeddedModelFolder())
  template = await loadChatTemplate(embeddedModelFolder(), tokenizer)
})

const textMessage = (role: 'system' | 'user', text: string): Message => ({ role, content: [{ type: 'text', text }] })
const result = (text: string): Message => ({ role: 'tool', toolCallId: 'c', content: [{ type: 'text', text }] })
const answer = (text: string): AssistantMessage => ({
  role: 'assistant',
  content: [{ type: 'text', text }],
  toolCalls: [],
})

interface ToyRequest {
  messages: Message[]
  tools?: Tool[]
}

const requests = new Map<string, ToyRequest>()
const reader: RequestReader = {
  readRequest: (turn) => {
    const found = requests.get(turn.id)
    return found && ({ tools: [], ...found } as unknown as TurnRequest)
  },
  readPrompt: () => ({ messages: [], tools: null }),
}

function callOf(id: string, request: ToyRequest, said = '', edge: Edge = { verdict: 'root', reason: 'first-call' }) {
  requests.set(id, request)
  return { key: id, turn: { id } as Turn, edge, choice: { message: answer(said) } } as unknown as CallNode
}

function render({ messages, tools }: ToyRequest): Int32Array {
  const wire = messages.map((message) => ({ role: message.role, content: textOf(message) }))
  const shown = tools?.map((tool) => ({ type: 'function', function: tool }))
  return template.tokenise({ messages: wire, ...(shown ? { tools: shown } : {}) })
}

/** Returns the text of each span. */
function spelt(ids: Int32Array, spans: readonly Span[]): [Provenance, string][] {
  return spans.map(({ from, provenance }, i) => [
    provenance,
    Buffer.concat(Array.from(ids.subarray(from, spans[i + 1]?.from), (id) => tokenizer.bytesOf(id))).toString(),
  ])
}

function attribute(request: ToyRequest, options: { ids?: Int32Array; call?: CallNode; before?: CallNode } = {}) {
  const call = options.call ?? callOf('one', request)
  const ids = options.ids ?? render(request)
  const part = { ids, call, isSampled: false, isTrained: false }
  return spelt(ids, createAttribution(tokenizer, reader)(part, options.before))
}

/** Returns the text of each span except those of the template. */
const messagesIn = (parts: [Provenance, string][]) => parts.filter(([provenance]) => provenance !== 'template')

describe('the tokens of a first prompt', () => {
  test('have the role of the message that contains their text; tokens of tools have the role template', () => {
    const tools = [{ name: 'bash', description: 'Runs things', parameters: { type: 'object' } }]
    const parts = attribute({
      messages: [textMessage('system', 'You help.'), textMessage('user', 'Was ist 你好 🐙?')],
      tools,
    })
    expect(messagesIn(parts)).toEqual([
      ['system', 'You help.'],
      ['user', 'Was ist 你好 🐙?'],
    ])
    expect(parts.find(([, text]) => text.includes('Runs things'))?.[0]).toBe('template')
  })

  test('of an assistant message are injected, or context if a recorded call sampled it', () => {
    const messages = [
      textMessage('user', 'One?'),
      answer('First words.'),
      textMessage('user', 'Two?'),
      answer('Second.'),
      textMessage('user', '3'),
    ]
    const from = callOf('zero', { messages: [] }, 'Second.')
    const edge: Edge = { verdict: 'forked', from, reason: 'unknown', detail: '', commonTokens: 0 }
    expect(messagesIn(attribute({ messages }, { call: callOf('one', { messages }, '', edge) }))).toEqual([
      ['user', 'One?'],
      ['injected', 'First words.'],
      ['user', 'Two?'],
      ['context', 'Second.'],
      ['user', '3'],
    ])
  })

  test('a repeated text is found twice, a text inside another text only once, an empty text never', () => {
    const messages = [
      textMessage('system', 'go'),
      textMessage('user', 'go on'),
      answer(''),
      textMessage('user', 'go on'),
      textMessage('user', 'on'),
    ]
    expect(messagesIn(attribute({ messages }))).toEqual([
      ['system', 'go'],
      ['user', 'go on'],
      ['user', 'go on'],
      ['user', 'on'],
    ])
  })

  test('a text with two possible positions stays context', () => {
    const parts = attribute({ messages: [textMessage('system', 'Be brief.'), textMessage('user', 'user')] })
    expect(parts.map(([provenance]) => provenance)).toEqual(['template', 'system', 'context'])
  })

  test('a text that the template changed leaves context around it, and other texts are still found', () => {
    const written = {
      messages: [textMessage('system', 'Be brief.'), textMessage('user', 'TRIMMED'), textMessage('user', 'Well?')],
    }
    const sent = {
      messages: [textMessage('system', 'Be brief.'), textMessage('user', '  TRIMMED  '), textMessage('user', 'Well?')],
    }
    const parts = attribute(sent, { ids: render(written) })
    expect(parts.map(([provenance]) => provenance)).toEqual(['template', 'system', 'context', 'user', 'template'])
    expect(parts[2]?.[1]).toContain('TRIMMED')
  })

  test('tokens of a split character belong to the message of the character', () => {
    const text = '𠜎🧑‍🚀é'
    expect(tokenizer.encode(text).length).toBeGreaterThan(Array.from(text).length)
    expect(messagesIn(attribute({ messages: [textMessage('user', text)] }))).toEqual([['user', text]])
  })

  test('every token is in exactly one span, in order, and a message’s text has its role or is context', () => {
    const anyText = fc.oneof(
      fc.string({ unit: 'grapheme' }),
      fc.constantFrom('user', '<|im_end|>', 'a<|im_start|>user\nb', '', '\n', 'system', '🐙'),
    )
    const anyMessage = fc.oneof(
      anyText.map((text) => textMessage('user', text)),
      anyText.map(answer),
      anyText.map(result),
    )
    fc.assert(
      fc.property(fc.array(anyMessage, { minLength: 1, maxLength: 6 }), anyText, (rest, first) => {
        const request = { messages: [textMessage('system', first), ...rest] }
        const ids = render(request)
        const part = { ids, call: callOf('any', request), isSampled: false, isTrained: false }
        const spans = createAttribution(tokenizer, reader)(part, undefined)
        expect(spans[0]?.from).toBe(0)
        expect(spans.every(({ from }, i) => i === 0 || from > (spans[i - 1]?.from ?? 0))).toBe(true)
        const whole = tokenizer.decode(ids)
        expect(
          spelt(ids, spans)
            .map(([, text]) => text)
            .join('').length,
        ).toBeGreaterThanOrEqual(whole.length)
        for (const [provenance, text] of spelt(ids, spans)) {
          if (provenance !== 'template') continue
          // Too long to occur in the template's own text.
          for (const message of request.messages) {
            if (textOf(message).length > 20) expect(text).not.toContain(textOf(message))
          }
        }
      }),
      { numRuns: 300 },
    )
  })
})

describe('the tokens between two answers', () => {
  const first = { messages: [textMessage('user', 'List it.')] }
  const next = {
    messages: [...first.messages, answer('Sure.'), result('a.txt'), result('b.txt'), textMessage('user', 'And?')],
  }

  function between(request: ToyRequest): Int32Array {
    const head = render({ messages: request.messages.slice(0, 2) })
    const open = template.toText({
      messages: request.messages.slice(0, 2).map((m) => ({ role: m.role, content: textOf(m) })),
      addGenerationPrompt: false,
    })
    expect(head.length).toBeGreaterThan(0)
    return tokenizer.encode(
      template
        .toText({ messages: request.messages.map((m) => ({ role: m.role, content: textOf(m) })) })
        .slice(open.length),
    )
  }

  test('belong to the new messages', () => {
    const options = { ids: between(next), call: callOf('two', next), before: callOf('one', first, 'Sure.') }
    expect(messagesIn(attribute(next, options))).toEqual([
      ['tool', 'a.txt'],
      ['tool', 'b.txt'],
      ['user', 'And?'],
    ])
  })

  test('are context if the request does not continue the previous request', () => {
    const call = callOf('two', { messages: [textMessage('user', 'Other'), textMessage('user', 'And?')] })
    const options = { ids: between(next), call, before: callOf('one', first) }
    expect(attribute(next, options).map(([provenance]) => provenance)).toEqual(['context'])
  })

  test('have the common role of the new messages without a decoder', () => {
    const plain = createAttribution(undefined, reader)
    const before = callOf('one', first)
    const of = (messages: Message[]): Span[] => {
      const call = callOf('two', { messages: [...first.messages, answer('Sure.'), ...messages] })
      return plain({ ids: Int32Array.of(1, 2), call, isSampled: false, isTrained: false }, before)
    }
    expect(of([result('a'), result('b')])).toEqual([{ from: 0, provenance: 'tool' }])
    expect(of([result('a'), textMessage('user', 'b')])).toEqual([{ from: 0, provenance: 'context' }])
    expect(of([])).toEqual([{ from: 0, provenance: 'context' }])
  })
})

test('an unreadable request and unknown ids become context without an error', () => {
  const part = {
    ids: Int32Array.of(1, 2),
    call: callOf('x', { messages: [textMessage('user', 'hi')] }),
    isSampled: false,
    isTrained: false,
  }
  const knowsNothing = { bytesOf: () => undefined, isSpecial: () => false }
  expect(createAttribution(knowsNothing, reader)(part, undefined)).toEqual([{ from: 0, provenance: 'context' }])
  requests.delete('x')
  expect(createAttribution(tokenizer, reader)(part, undefined)).toEqual([{ from: 0, provenance: 'context' }])
})

test('the time for a conversation is proportional to its length', () => {
  const messages = Array.from({ length: 2000 }, (_, i) =>
    i % 2 ? answer(`answer ${i}`) : textMessage('user', `question ${i}?`),
  )
  const request = { messages: [...messages, textMessage('user', 'x'.repeat(100_000))] }
  const ids = render(request)
  const part = { ids, call: callOf('long', request), isSampled: false, isTrained: false }
  const startedAt = cpuTimeMs()
  const spans = createAttribution(tokenizer, reader)(part, undefined)
  expect(spans.filter(({ provenance }) => provenance === 'user')).toHaveLength(1001)
  expect(cpuTimeMs() - startedAt).toBeLessThan(2000)
})
