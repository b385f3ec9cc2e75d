import Anthropic from '@anthropic-ai/sdk'
import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { SseParser } from '../../lib/net/sse.ts'
import { RolloutError, type Failure, type FailureCode } from '../../model/failure.ts'
import type { AssistantMessage } from '../../model/message.ts'
import type { ChoiceDelta, StreamEvent, ToolCallDelta } from '../../model/stream-event.ts'
import type { FinishReason, TurnRequest, TurnResponse } from '../../model/turn.ts'
import { TurnCapture } from '../capture/capture-turn.ts'
import { createTextSealer } from '../sessions/text-sealer.ts'
import { anthropicMessagesFields } from './anthropic-messages-fields.ts'
import { anthropicMessages } from './anthropic-messages.ts'
import { bareContext, type RequestContext, type Route } from './dialect.ts'
import { runs } from '../../../test/support/runs.ts'

const context: RequestContext = {
  ...bareContext(anthropicMessages.routes[0] as Route),
  sealer: createTextSealer('key'),
}
const counting: RequestContext = { ...context, route: anthropicMessages.routes[1] as Route }

function parse(value: unknown, within = context): TurnRequest {
  return anthropicMessages.parseRequest({ text: JSON.stringify(value), value }, within)
}

function refusal(value: unknown): Failure {
  try {
    parse(value)
  } catch (error) {
    if (error instanceof RolloutError) return error.failure
    throw error
  }
  throw new Error('was not refused')
}

const hello = { model: 'm', max_tokens: 100, messages: [{ role: 'user', content: 'hello' }] }

/** Parses wire messages. */
function messagesOf(...messages: unknown[]): TurnRequest['messages'] {
  return parse({ ...hello, messages }).messages
}

function text(value: string): { type: 'text'; text: string } {
  return { type: 'text', text: value }
}

const bash = { name: 'Bash', description: 'run', input_schema: { type: 'object', properties: { command: {} } } }
const fetchPage = { ...bash, name: 'WebFetch', defer_loading: true }

describe('parseRequest()', () => {
  test('parses the first request of Claude Code', () => {
    const request = parse({
      ...hello,
      system: [
        text('x-anthropic-billing-header: cc_version=1.2.3; cc_entrypoint=sdk-cli;'),
        { ...text('you are an agent'), cache_control: { type: 'ephemeral' } },
        { ...text('work well'), cache_control: { type: 'ephemeral', ttl: '1h' } },
      ],
      messages: [
        { role: 'user', content: [text('a reminder'), text('do it')] },
        { role: 'system', content: [{ ...text('the environment'), cache_control: { type: 'ephemeral' } }] },
      ],
      tools: [bash, { ...bash, name: 'DeferredToolPlaceholder', defer_loading: true }],
      metadata: { user_id: '{"session_id":"s"}' },
      max_tokens: 32_000,
      thinking: { type: 'adaptive', display: 'omitted' },
      context_management: { edits: [{ type: 'clear_thinking_20251015', keep: 'all' }] },
      output_config: { effort: 'high' },
      stream: true,
    })
    expect(request.messages).toEqual([
      { role: 'system', content: [text('x-anthropic-billing-header: cc_version=1.2.3; cc_entrypoint=sdk-cli;')] },
      { role: 'system', content: [text('you are an agent'), text('work well')] },
      { role: 'user', content: [text('a reminder'), text('do it')] },
      { role: 'system', content: [text('the environment')] },
    ])
    expect(request.tools).toEqual([{ name: 'Bash', description: 'run', parameters: bash.input_schema }])
    expect(request).toMatchObject({
      dialect: 'anthropic-messages',
      model: 'm',
      stream: true,
      streamUsage: true,
      reasoning: { enabled: true, effort: 'high' },
      sampling: { maxTokens: 32_000, n: 1 },
    })
    expect(request.toolChoice).toBeUndefined()
    expect(request.responseFormat).toBeUndefined()
  })

  test('parses a tool loop: thinking, text and calls are one turn, a result is a tool message', () => {
    const messages = messagesOf(
      { role: 'user', content: 'two files' },
      {
        role: 'assistant',
        content: [
          { type: 'thinking', thinking: 'with the shell', signature: 'from elsewhere' },
          text('The first.'),
          { type: 'tool_use', id: 'c1', name: 'Bash', input: { command: 'ls', n: 1 } },
          { type: 'tool_use', id: 'c2', name: 'Read', input: {}, cache_control: { type: 'ephemeral' } },
        ],
      },
      {
        role: 'user',
        content: [
          { tool_use_id: 'c1', type: 'tool_result', content: 'one', is_error: false },
          { tool_use_id: 'c2', type: 'tool_result', content: [text('no such file')], is_error: true },
        ],
      },
      { role: 'assistant', content: 'Done.' },
    )
    expect(messages.slice(1)).toEqual([
      {
        role: 'assistant',
        reasoning: 'with the shell',
        content: [text('The first.')],
        toolCalls: [
          { id: 'c1', name: 'Bash', arguments: '{"command":"ls","n":1}' },
          { id: 'c2', name: 'Read', arguments: '{}' },
        ],
      },
      { role: 'tool', toolCallId: 'c1', content: [text('one')], isError: false },
      { role: 'tool', toolCallId: 'c2', content: [text('no such file')], isError: true },
      { role: 'assistant', content: [text('Done.')], toolCalls: [] },
    ])
  })

  test('puts results before the other content of a user message', () => {
    const image = { type: 'image', source: { type: 'url', url: 'https://host/a.png' } }
    expect(
      messagesOf({
        role: 'user',
        content: [
          text('meanwhile'),
          { type: 'tool_result', tool_use_id: 'c1', content: null },
          image,
          { type: 'tool_result', tool_use_id: 'c2' },
          text('go on'),
        ],
      }),
    ).toEqual([
      { role: 'tool', toolCallId: 'c1', content: [] },
      { role: 'tool', toolCallId: 'c2', content: [] },
      { role: 'user', content: [text('meanwhile'), { type: 'image', url: 'https://host/a.png' }, text('go on')] },
    ])
  })

  test('keeps the text of content documents and of search results, also in results', () => {
    const image = { type: 'image', source: { type: 'base64', media_type: 'image/png', data: 'AAAA' } }
    const inner = [text('first page'), image, { ...text('second page'), cache_control: { type: 'ephemeral' } }]
    const blocks = [
      { type: 'document', title: 'Manual', source: { type: 'content', content: inner } },
      { type: 'document', source: { type: 'content', content: 'one string' } },
      { type: 'search_result', source: 'https://a.example/p', title: 'A page', content: [text('found here')] },
      { type: 'search_result', source: 'https://a.example/q', title: 'Empty', content: [] },
    ]
    const read = [
      text('first page'),
      { type: 'image', url: 'data:image/png;base64,AAAA' },
      text('second page'),
      text('one string'),
      text('A page\nhttps://a.example/p\n'),
      text('found here'),
      text('Empty\nhttps://a.example/q\n'),
    ]
    const [result, user] = messagesOf({
      role: 'user',
      content: [{ type: 'tool_result', tool_use_id: 'c', content: blocks }, ...blocks],
    })
    expect(result?.content).toEqual(read)
    expect(user?.content).toEqual(read)
    const empty = { type: 'document', source: { type: 'content', content: [] } }
    expect(messagesOf({ role: 'user', content: [empty] })[0]?.content).toEqual([{ type: 'other', wire: empty }])
  })

  test('parses images and documents, also in results', () => {
    const source = { type: 'base64', media_type: 'image/jpeg', data: 'AAAA' }
    const pdf = { type: 'document', source: { type: 'base64', media_type: 'application/pdf', data: 'AAAA' } }
    const [result, user] = messagesOf({
      role: 'user',
      content: [
        { type: 'tool_result', tool_use_id: 'c', content: [{ type: 'image', source }] },
        { type: 'document', source: { type: 'text', media_type: 'text/plain', data: 'plain' } },
        { ...pdf, cache_control: { type: 'ephemeral' } },
        { type: 'image', source: { type: 'file', file_id: 'f' } },
      ],
    })
    expect(result?.content).toEqual([{ type: 'image', url: 'data:image/jpeg;base64,AAAA' }])
    expect(user?.content).toEqual([
      text('plain'),
      { type: 'other', wire: pdf },
      { type: 'other', wire: { type: 'image', source: { type: 'file', file_id: 'f' } } },
    ])
  })

  test('parses a string and a text block equally, with cache_control anywhere', () => {
    const marked = [{ ...text('late news'), cache_control: { type: 'ephemeral' } }]
    for (const role of ['user', 'assistant', 'system']) {
      expect(messagesOf({ role, content: marked })).toEqual(messagesOf({ role, content: 'late news' }))
    }
    expect(parse({ ...hello, system: 'be brief' }).messages).toEqual(
      parse({ ...hello, system: [text('be brief')] }).messages,
    )
  })

  test('keeps the position of system messages', () => {
    const roles = ['user', 'system', 'assistant', 'user', 'system']
    expect(messagesOf(...roles.map((role) => ({ role, content: 'x' }))).map(({ role }) => role)).toEqual(roles)
  })

  test('joins consecutive assistant messages to one turn', () => {
    const call = { type: 'tool_use', id: 'c', name: 'f', input: {} }
    expect(
      messagesOf(
        { role: 'assistant', content: [{ type: 'thinking', thinking: 'a', signature: '' }, text('one ')] },
        { role: 'assistant', content: [{ type: 'thinking', thinking: 'b' }, text('two'), call] },
      ),
    ).toEqual([
      {
        role: 'assistant',
        reasoning: 'ab',
        content: [text('one two')],
        toolCalls: [{ id: 'c', name: 'f', arguments: '{}' }],
      },
    ])
  })

  test('restores sealed reasoning and ignores signatures of another origin', () => {
    const signature = context.sealer.seal(' as sampled\n')
    const thinkingOf = (...blocks: unknown[]): unknown =>
      (messagesOf({ role: 'assistant', content: [...blocks, text('x')] })[0] as AssistantMessage).reasoning
    expect(thinkingOf({ type: 'thinking', thinking: '', signature })).toBe(' as sampled\n')
    expect(thinkingOf({ type: 'thinking', thinking: 'as sampled', signature })).toBe(' as sampled\n')
    expect(thinkingOf({ type: 'redacted_thinking', data: signature })).toBe(' as sampled\n')
    expect(thinkingOf({ type: 'redacted_thinking', data: 'EqQBCkgI' })).toBeUndefined()
    expect(thinkingOf({ type: 'thinking', thinking: '', signature: 'EqQBCkgI' })).toBeUndefined()
    expect(thinkingOf({ type: 'thinking', thinking: 'seen', signature: 'EqQBCkgI' })).toBe('seen')
    expect(thinkingOf()).toBeUndefined()
  })

  test('restores arguments that are not JSON', () => {
    const argumentsOf = (input?: unknown): unknown =>
      (
        messagesOf({
          role: 'assistant',
          content: [{ type: 'tool_use', id: 'c', name: 'f', input }],
        })[0] as AssistantMessage
      ).toolCalls[0]?.arguments
    expect(argumentsOf({ __unparsedToolInput: { raw: '{"command": "ec', len: 15 } })).toBe('{"command": "ec')
    expect(argumentsOf({ __unparsedToolInput: 'mine' })).toBe('{"__unparsedToolInput":"mine"}')
    expect(argumentsOf('{"a": 1}')).toBe('{"a": 1}')
    expect(argumentsOf()).toBe('{}')
    expect(argumentsOf(null)).toBe('{}')
  })

  test('returns the tools that the harness runs, and no tool choice without tools', () => {
    const search = { type: 'web_search_20250305', name: 'web_search', max_uses: 8 }
    const tools = (...list: unknown[]): string[] => parse({ ...hello, tools: list }).tools.map(({ name }) => name)
    expect(tools(bash, search, { ...bash, name: 'Edit', type: 'custom', eager_input_streaming: true })).toEqual([
      'Bash',
      'Edit',
    ])
    const choice = (tool_choice: unknown, ...list: unknown[]): unknown =>
      parse({ ...hello, tools: list, tool_choice }).toolChoice
    expect(choice({ type: 'auto' }, bash)).toBe('auto')
    expect(choice({ type: 'any' }, bash)).toBe('required')
    expect(choice({ type: 'none' }, bash)).toBe('none')
    expect(choice({ type: 'tool', name: 'Bash' }, bash)).toEqual({ name: 'Bash' })
    expect(choice({ type: 'tool', name: 'web_search' }, search)).toBeUndefined()
    expect(choice({ type: 'tool', name: 'web_search' }, bash, search)).toBeUndefined()
    expect(choice({ type: 'any' }, search)).toBeUndefined()
    expect(parse({ ...hello, tool_choice: { type: 'auto', disable_parallel_tool_use: true } }).parallelToolCalls).toBe(
      false,
    )
  })

  test('returns a deferred tool after a reference to it', () => {
    const names = (tools: unknown[], ...messages: unknown[]): string[] =>
      parse({ ...hello, tools, messages: [...hello.messages, ...messages] }).tools.map(({ name }) => name)
    const found = {
      role: 'user',
      content: [
        { type: 'tool_result', tool_use_id: 'c', content: [{ type: 'tool_reference', tool_name: 'WebFetch' }] },
      ],
    }
    const change = (type: string, tool: unknown): unknown => ({ role: 'system', content: [{ type, tool }] })
    const reference = { type: 'tool_reference', name: 'WebFetch' }
    expect(names([fetchPage, bash])).toEqual(['Bash'])
    expect(names([fetchPage, bash], found)).toEqual(['Bash', 'WebFetch'])
    expect(names([fetchPage, bash], change('tool_addition', reference))).toEqual(['Bash', 'WebFetch'])
    expect(names([fetchPage, bash], found, change('tool_removal', reference))).toEqual(['Bash'])
    const definition = { type: 'tool_definition', definition: { ...bash, name: 'New' } }
    expect(names([bash], change('tool_addition', definition))).toEqual(['Bash', 'New'])
    expect(names([fetchPage, bash, { type: 'tool_search_tool_regex', name: 'tool_search_tool_regex' }])).toEqual([
      'WebFetch',
      'Bash',
    ])
    // A system message without other content is dropped.
    expect(messagesOf(change('tool_addition', reference))).toEqual([])
    expect(messagesOf(found)).toMatchObject([{ role: 'tool', content: [{ type: 'text' }] }])
  })

  test('parses the settings of reasoning, sampling and response format', () => {
    expect(parse(hello).reasoning).toBeUndefined()
    expect(parse({ ...hello, thinking: { type: 'disabled' } }).reasoning).toEqual({ enabled: false })
    expect(parse({ ...hello, thinking: { type: 'enabled', budget_tokens: 8192 } }).reasoning).toEqual({ enabled: true })
    expect(parse({ ...hello, output_config: { effort: 'low' } }).reasoning).toEqual({ enabled: true, effort: 'low' })
    expect(
      parse({ ...hello, temperature: 1, top_p: 0.9, top_k: 40, stop_sequences: ['END'], stream: null }),
    ).toMatchObject({ sampling: { temperature: 1, topP: 0.9, topK: 40, stop: ['END'] }, stream: false })
    const schema = { type: 'object', properties: { title: { type: 'string' } } }
    const format = { type: 'json_schema', schema }
    for (const body of [{ output_config: { format } }, { output_format: format }]) {
      expect(parse({ ...hello, ...body }).responseFormat).toMatchObject({ type: 'json-schema', schema })
    }
  })

  test('keeps unknown blocks', () => {
    const block = { type: 'container_upload', file_id: 'f' }
    expect(messagesOf({ role: 'user', content: [block] })).toEqual([
      { role: 'user', content: [{ type: 'other', wire: block }] },
    ])
    const searched = { type: 'web_search_tool_result', tool_use_id: 's', content: { error_code: 'unavailable' } }
    expect(messagesOf({ role: 'assistant', content: [searched, text('x')] })[0]?.content).toEqual([
      { type: 'other', wire: searched },
      text('x'),
    ])
  })

  test('requires max_tokens to generate, and not to count', () => {
    const { max_tokens: _, ...rest } = hello
    expect(refusal(rest)).toMatchObject({ param: 'max_tokens', message: 'max_tokens: Field required', status: 400 })
    expect(parse(rest, counting).sampling.maxTokens).toBeUndefined()
  })

  test('names the invalid field', () => {
    const faults: [string, unknown][] = [
      ['model', { ...hello, model: undefined }],
      ['messages', { ...hello, messages: [] }],
      ['messages.0.role', { ...hello, messages: [{ role: 'tool', content: '' }] }],
      ['messages.0.content', { ...hello, messages: [{ role: 'user', content: 7 }] }],
      ['messages.0.content.1.text', { ...hello, messages: [{ role: 'user', content: [text(''), { type: 'text' }] }] }],
      ['messages.0.content.0.type', { ...hello, messages: [{ role: 'user', content: [{ text: 'x' }] }] }],
      [
        'messages.0.content.0.content.0.source',
        {
          ...hello,
          messages: [
            { role: 'user', content: [{ type: 'tool_result', tool_use_id: 'c', content: [{ type: 'image' }] }] },
          ],
        },
      ],
      ['tools.0.name', { ...hello, tools: [{ name: 1 }] }],
      ['tool_choice.type', { ...hello, tool_choice: { type: 'all' } }],
      ['temperature', { ...hello, temperature: 'hot' }],
      ['max_tokens', { ...hello, max_tokens: 1.5 }],
      ['thread', { ...hello, thread: { type: 'continue', previous_message_id: 'msg_1' } }],
    ]
    for (const [param, body] of faults) {
      expect(refusal(body), param).toMatchObject({ code: 'request.malformed', param })
      expect(refusal(body).message).toMatch(`${param}: `)
    }
    expect(refusal([])).toMatchObject({ code: 'request.malformed', status: 400 })
  })

  test('parses a message of very many blocks', () => {
    const content = Array.from({ length: 200_000 }, () => ({ type: 'tool_result', tool_use_id: 'c' }))
    expect(messagesOf({ role: 'user', content })).toHaveLength(200_000)
    const turns = Array.from({ length: 50_000 }, () => ({ role: 'assistant', content: 'x' }))
    expect(messagesOf(...turns)).toHaveLength(1)
  })

  test('throws only request errors, for any JSON', () => {
    fc.assert(
      fc.property(fc.jsonValue(), fc.jsonValue(), fc.nat(), (one, other, place) => {
        const bodies = [
          one,
          { ...hello, messages: one },
          { ...hello, [FIELDS[place % FIELDS.length] as string]: other },
        ]
        const block = BLOCKS[place % BLOCKS.length] as Record<string, unknown>
        const field = Object.keys(block)[place % Object.keys(block).length] as string
        for (const role of ['user', 'assistant', 'system']) {
          bodies.push({ ...hello, messages: [{ role, content: [{ ...block, [field]: one }, other] }] } as never)
        }
        for (const body of bodies) {
          try {
            parse(body)
          } catch (error) {
            expect(error).toBeInstanceOf(RolloutError)
          }
        }
      }),
      { numRuns: runs(300) },
    )
  })
})

const FIELDS = ['system', 'tools', 'tool_choice', 'thinking', 'output_config', 'stop_sequences', 'max_tokens', 'thread']
const BLOCKS = [
  text('x'),
  { type: 'image', source: { type: 'base64', media_type: 'image/png', data: '' } },
  { type: 'document', source: { type: 'text', data: 'x' } },
  { type: 'document', source: { type: 'content', content: [text('x')] } },
  { type: 'search_result', source: 'x', title: 'x', content: [text('x')] },
  { type: 'thinking', thinking: 'x', signature: 'x' },
  { type: 'redacted_thinking', data: 'x' },
  { type: 'tool_use', id: 'c', name: 'f', input: {} },
  { type: 'tool_result', tool_use_id: 'c', content: [], is_error: false },
  { type: 'tool_addition', tool: { name: 'f', definition: bash } },
  { type: 'tool_removal', tool: { name: 'f' } },
]

// --- answers ----------------------------------------------------------------------------------------------------------

interface Sampled {
  reasoning?: string
  text?: string
  calls?: { id?: string; name: string; arguments: string }[]
}

const start: StreamEvent = {
  type: 'answer-start',
  id: 'chatcmpl-1',
  model: 'served',
  created: 7,
  promptTokenIds: Int32Array.of(1, 2, 3, 4, 5),
}
const usage: StreamEvent = { type: 'usage', usage: { promptTokens: 5, completionTokens: 9, cachedTokens: 3 } }
const end: StreamEvent = { type: 'answer-end' }

function delta(fields: Partial<ChoiceDelta>): ChoiceDelta {
  return { type: 'choice-delta', choice: 0, ...fields }
}

/** The answer of an engine that samples it in one step. */
function eventsOf({ reasoning, text: words, calls }: Sampled, finishReason: FinishReason = 'stop'): StreamEvent[] {
  const toolCalls = calls?.map((call, index) => ({ id: `call-${index}`, ...call, index }))
  return [start, delta({ reasoning, text: words, toolCalls, finishReason }), usage, end]
}

function responseOf(events: readonly StreamEvent[]): TurnResponse {
  const capture = new TurnCapture()
  for (const event of events) capture.add(event)
  return capture.toResponse() as TurnResponse
}

type Rendered = Omit<Anthropic.Message, 'content'> & { content: Record<string, unknown>[] }

function whole(events: readonly StreamEvent[], request = parse(hello)): Rendered {
  const answer = { response: responseOf(events), events }
  return JSON.parse(JSON.stringify(anthropicMessages.renderResponse(request, answer, context))) as Rendered
}

function streamed(events: readonly StreamEvent[], request = parse(hello)): string {
  const renderer = anthropicMessages.createStreamRenderer(request, context)
  return events.map((event) => renderer.render(event)).join('')
}

type Frame = { type: string; index: number; delta: Record<string, string>; content_block: Record<string, unknown> }

function framesOf(sse: string): Frame[] {
  return new SseParser().push(Buffer.from(sse)).map(({ event, data }) => {
    const frame = JSON.parse(data) as Frame
    expect(frame.type).toBe(event)
    return frame
  })
}

/** A strict client: blocks open in order, one at a time, and receive only deltas of their kind. */
function reduce(sse: string): { content: Record<string, unknown>[]; inputs: string[]; frames: Frame[] } {
  const content: Record<string, unknown>[] = []
  const inputs: string[] = []
  let isOpen = false
  const frames = framesOf(sse)
  for (const frame of frames) {
    const block = content.at(-1) as Record<string, string>
    if (frame.type === 'content_block_start') {
      expect([isOpen, frame.index]).toEqual([false, content.length])
      isOpen = true
      content.push({ ...frame.content_block })
      if (frame.content_block['type'] === 'tool_use') inputs.push('')
    } else if (frame.type === 'content_block_delta') {
      expect([isOpen, frame.index]).toEqual([true, content.length - 1])
      const { type, ...pieces } = frame.delta
      expect(type).toBe(
        {
          thinking: 'signature' in pieces ? 'signature_delta' : 'thinking_delta',
          text: 'text_delta',
          tool_use: 'input_json_delta',
        }[block['type'] as string],
      )
      for (const [key, piece] of Object.entries(pieces)) {
        expect(piece).not.toBe('')
        if (key === 'partial_json') inputs[inputs.length - 1] += piece
        else block[key] += piece
      }
    } else if (frame.type === 'content_block_stop') {
      expect([isOpen, frame.index]).toEqual([true, content.length - 1])
      isOpen = false
    }
  }
  expect(isOpen).toBe(false)
  return { content, inputs, frames }
}

const words = fc.string({ unit: 'grapheme', maxLength: 40 })
const anyArguments = fc
  .record({
    input: fc.dictionary(fc.stringMatching(/^[a-z_]{1,6}$/), fc.jsonValue({ maxDepth: 2 }), { maxKeys: 3 }),
    space: fc.constantFrom(0, 1),
  })
  .map(({ input, space }) => JSON.stringify(input, null, space))
const anySampled: fc.Arbitrary<Sampled> = fc.record({
  reasoning: words,
  text: words,
  calls: fc.array(fc.record({ name: fc.stringMatching(/^[A-Za-z_]{1,8}$/), arguments: anyArguments }), {
    maxLength: 3,
  }),
})

/** Steps of an engine that sampled this answer, cut and grouped by the numbers. */
function cut({ reasoning = '', text: said = '', calls = [] }: Sampled, sizes: readonly number[]): ChoiceDelta[] {
  const atoms: Partial<ChoiceDelta>[] = []
  let at = 0
  const pieces = (value: string): string[] => {
    const result: string[] = []
    for (let from = 0; from < value.length;) {
      const size = 1 + ((sizes[at++ % sizes.length] ?? 0) % 7)
      result.push(value.slice(from, from + size))
      from += size
    }
    return result
  }
  for (const piece of pieces(reasoning)) atoms.push({ reasoning: piece })
  for (const piece of pieces(said)) atoms.push({ text: piece })
  for (const [index, call] of calls.entries()) {
    atoms.push({ toolCalls: [{ index, id: `call-${index}`, name: call.name, arguments: '' }] })
    for (const piece of pieces(call.arguments)) atoms.push({ toolCalls: [{ index, arguments: piece }] })
  }
  const deltas: ChoiceDelta[] = []
  while (atoms.length > 0) {
    const group = atoms.splice(0, 1 + ((sizes[at++ % sizes.length] ?? 0) % 3))
    const toolCalls = group.flatMap((atom) => atom.toolCalls ?? [])
    deltas.push(
      delta({
        reasoning: group.map((atom) => atom.reasoning ?? '').join(''),
        text: group.map((atom) => atom.text ?? '').join(''),
        ...(toolCalls.length > 0 ? { toolCalls } : {}),
      }),
    )
  }
  return [...deltas, delta({ finishReason: 'stop' })]
}

const sizes = fc.array(fc.nat(20), { minLength: 1, maxLength: 12 })

describe('createStreamRenderer()', () => {
  test('opens and closes a block for each of thinking, text and calls', () => {
    const events: StreamEvent[] = [
      start,
      delta({ text: '', reasoning: 'hm' }),
      delta({ ids: Int32Array.of(1) }),
      delta({ reasoning: '!', text: 'So' }),
      delta({ toolCalls: [{ index: 0, id: 'c1', name: 'Bash', arguments: '' }] }),
      delta({ toolCalls: [{ index: 0, arguments: '{"command": ' }] }),
      delta({
        toolCalls: [
          { index: 0, arguments: '"ls"}' },
          { index: 1, id: 'c2', name: 'Now' },
        ],
      }),
      delta({ finishReason: 'tool-calls' }),
      usage,
      end,
    ]
    const frames = framesOf(streamed(events))
    const signature = context.sealer.seal('hm!')
    const block = (index: number, content_block: unknown): unknown => ({
      type: 'content_block_start',
      index,
      content_block,
    })
    const piece = (index: number, fields: unknown): unknown => ({ type: 'content_block_delta', index, delta: fields })
    const stop = (index: number): unknown => ({ type: 'content_block_stop', index })
    expect(frames).toEqual([
      {
        type: 'message_start',
        message: {
          id: 'msg_chatcmpl-1',
          type: 'message',
          role: 'assistant',
          model: 'm',
          content: [],
          stop_reason: null,
          stop_sequence: null,
          usage: {
            input_tokens: 5,
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: 0,
            output_tokens: 0,
          },
        },
      },
      block(0, { type: 'thinking', thinking: '', signature: '' }),
      piece(0, { type: 'thinking_delta', thinking: 'hm' }),
      piece(0, { type: 'thinking_delta', thinking: '!' }),
      piece(0, { type: 'signature_delta', signature }),
      stop(0),
      block(1, { type: 'text', text: '' }),
      piece(1, { type: 'text_delta', text: 'So' }),
      stop(1),
      block(2, { type: 'tool_use', id: 'c1', name: 'Bash', input: {} }),
      piece(2, { type: 'input_json_delta', partial_json: '{"command": ' }),
      piece(2, { type: 'input_json_delta', partial_json: '"ls"}' }),
      stop(2),
      block(3, { type: 'tool_use', id: 'c2', name: 'Now', input: {} }),
      stop(3),
      {
        type: 'message_delta',
        delta: { stop_reason: 'tool_use', stop_sequence: null },
        usage: {
          input_tokens: 2,
          cache_creation_input_tokens: 0,
          cache_read_input_tokens: 3,
          output_tokens: 9,
        },
      },
      { type: 'message_stop' },
    ])
  })

  test('renders the same answer for every cut and grouping of the engine’s steps', () => {
    fc.assert(
      fc.property(anySampled, sizes, fc.boolean(), (sampled, numbers, isOmitted) => {
        const request = parse({
          ...hello,
          thinking: { type: 'adaptive', ...(isOmitted ? { display: 'omitted' } : {}) },
        })
        const events = [start, ...cut(sampled, numbers), usage, end]
        const { content, inputs, frames } = reduce(streamed(events, request))
        expect(inputs).toEqual(sampled.calls?.map((call) => call.arguments))
        let calls = 0
        const parsed = content.map((block) =>
          block['type'] === 'tool_use' ? { ...block, input: JSON.parse(inputs[calls++] as string) } : block,
        )
        const answer = whole(events, request)
        expect(parsed).toEqual(answer.content)
        expect(frames.at(-2)).toMatchObject({ delta: { stop_reason: answer.stop_reason }, usage: answer.usage })
        expect(streamed(events, request)).toBe(streamed(events, request))
      }),
      { numRuns: runs(100) },
    )
  })

  test('delays other pieces while a call is incomplete', () => {
    const calls = (...toolCalls: ToolCallDelta[]): StreamEvent => delta({ toolCalls })
    const { content, inputs } = reduce(
      streamed([
        start,
        calls({ index: 0, id: 'a', name: 'f' }, { index: 1, id: 'b', name: 'g' }),
        calls({ index: 0, arguments: '{"x"' }, { index: 1, arguments: '{"y"' }),
        delta({ text: 'after' }),
        calls({ index: 1, arguments: ':[' }, { index: 0, arguments: ':1}' }),
        calls(
          { index: 1, arguments: '2}' },
          { index: 2, id: 'c', name: 'h', arguments: '{}' },
          { index: 0, arguments: ' ' },
        ),
        delta({ finishReason: 'tool-calls' }),
        end,
      ]),
    )
    expect(inputs).toEqual(['{"x":1}', '{"y":[2}', '{}'])
    expect(content.map((block) => block['id'] ?? block['text'])).toEqual(['a', 'b', 'after', 'c'])
  })

  test('renders thinking after text as a new block', () => {
    const events = [
      start,
      delta({ reasoning: 'a' }),
      delta({ text: 'b' }),
      delta({ reasoning: 'c', finishReason: 'stop' }),
      end,
    ]
    const { content } = reduce(streamed(events))
    expect(content.map((block) => block['thinking'] ?? block['text'])).toEqual(['a', 'b', 'c'])
    expect(messagesOf({ role: 'assistant', content })).toMatchObject([{ reasoning: 'ac', content: [text('b')] }])
  })

  test('renders the signature without the text when thinking is omitted', () => {
    const request = parse({ ...hello, thinking: { type: 'adaptive', display: 'omitted' } })
    const events = eventsOf({ reasoning: 'secret plan', text: 'done' })
    const expected = [{ type: 'thinking', thinking: '', signature: context.sealer.seal('secret plan') }, text('done')]
    expect(streamed(events, request)).not.toContain('secret')
    expect(reduce(streamed(events, request)).content).toEqual(expected)
    expect(whole(events, request).content).toEqual(expected)
  })

  test('renders an empty text block for an empty answer', () => {
    const events = [start, delta({ text: '' }), delta({ finishReason: 'stop', ids: Int32Array.of(2) }), end]
    expect(reduce(streamed(events)).content).toEqual([text('')])
    expect(whole(events).content).toEqual([text('')])
    expect(whole([start, end])).toMatchObject({ content: [text('')], stop_reason: 'max_tokens' })
  })

  test('counts tokens when the engine reports no usage', () => {
    const frames = framesOf(
      streamed([start, delta({ text: 'a', ids: Int32Array.of(7, 8) }), delta({ finishReason: 'stop' }), end]),
    )
    expect(frames.at(-2)).toMatchObject({ usage: { input_tokens: 5, cache_read_input_tokens: 0, output_tokens: 2 } })
  })

  test('keepAlive() may be the first frame', () => {
    const renderer = anthropicMessages.createStreamRenderer(parse(hello), context)
    expect(renderer.keepAlive()).toBe('event: ping\ndata: {"type":"ping"}\n\n')
  })

  test('generates different ids for answers and calls without ids', () => {
    const nameless: StreamEvent = { ...start, id: '' }
    const call = { index: 0, name: 'f', arguments: '{}' }
    expect(whole([nameless, end]).id).toBe('msg_7_5')
    const events = [start, delta({ toolCalls: [call, { ...call, index: 1 }], finishReason: 'stop' }), end]
    const ids = ['toolu_chatcmpl-1_0', 'toolu_chatcmpl-1_1']
    expect(reduce(streamed(events)).content.map((block) => block['id'])).toEqual(ids)
    expect(whole(events).content.map((block) => block['id'])).toEqual(ids)
  })

  test.each<[FinishReason, string | number | undefined, Sampled, string, string | null]>([
    ['stop', undefined, { text: 'x' }, 'end_turn', null],
    ['stop', 'END', { text: 'x' }, 'stop_sequence', 'END'],
    ['stop', '<|im_end|>', { text: 'x' }, 'end_turn', null],
    ['stop', 151_645, { text: 'x' }, 'end_turn', null],
    ['stop', undefined, { calls: [{ name: 'f', arguments: '{}' }] }, 'tool_use', null],
    ['tool-calls', undefined, { calls: [{ name: 'f', arguments: '{}' }] }, 'tool_use', null],
    ['tool-calls', undefined, { text: 'none after all' }, 'end_turn', null],
    ['length', undefined, { calls: [{ name: 'f', arguments: '{"a' }] }, 'max_tokens', null],
    ['abort', undefined, { text: 'x' }, 'max_tokens', null],
    ['content-filter', undefined, { text: 'x' }, 'refusal', null],
    ['other', undefined, { text: 'x' }, 'end_turn', null],
  ])('renders the stop reason: %s, %s', (finishReason, stopReason, sampled, stop_reason, stop_sequence) => {
    const request = parse({ ...hello, stop_sequences: ['END'] })
    const events = eventsOf(sampled, finishReason).map((event) =>
      event.type === 'choice-delta' ? { ...event, stopReason } : event,
    )
    expect(whole(events, request)).toMatchObject({ stop_reason, stop_sequence })
    expect(framesOf(streamed(events, request)).at(-2)?.delta).toEqual({ stop_reason, stop_sequence })
  })
})

describe('the vendor’s own client', () => {
  function clientOf(reply: () => Response): Anthropic {
    return new Anthropic({
      apiKey: 'k',
      baseURL: 'http://gateway',
      maxRetries: 0,
      fetch: () => Promise.resolve(reply()),
    })
  }

  function sseOf(body: string): Response {
    return new Response(body, { headers: { 'content-type': anthropicMessages.streamType(parse(hello)) } })
  }

  const params: Anthropic.MessageCreateParamsNonStreaming = {
    model: 'm',
    max_tokens: 100,
    messages: [{ role: 'user', content: 'hello' }],
  }

  test('reads the rendered answer, streamed and whole, and returns it as sampled', async () => {
    await fc.assert(
      fc.asyncProperty(anySampled, sizes, fc.boolean(), async (sampled, numbers, isOmitted) => {
        const request = parse({
          ...hello,
          thinking: { type: 'adaptive', display: isOmitted ? 'omitted' : 'summarized' },
        })
        const events = [start, ...cut(sampled, numbers), usage, end]
        const ping = anthropicMessages.createStreamRenderer(request, context).keepAlive()
        const fromStream = await clientOf(() => sseOf(ping + streamed(events, request)))
          .messages.stream(params)
          .finalMessage()
        const answer = whole(events, request)
        const fromWhole = await clientOf(() => Response.json(answer)).messages.create(params)
        expect(fromWhole).toMatchObject(answer)
        expect(fromStream).toMatchObject(answer)

        for (const { content } of [fromStream, fromWhole]) {
          const echoed = JSON.parse(JSON.stringify({ role: 'assistant', content })) as unknown
          const [message] = messagesOf(echoed) as [AssistantMessage]
          expect(message.reasoning ?? '').toBe(sampled.reasoning)
          expect(message.content).toEqual(sampled.text === '' ? [] : [text(sampled.text as string)])
          expect(message.toolCalls.map(({ name, arguments: args }) => [name, JSON.parse(args)])).toEqual(
            sampled.calls?.map((call) => [call.name, JSON.parse(call.arguments)]),
          )
        }
      }),
      { numRuns: 60 },
    )
  })

  test('returns arguments that are not JSON in the form that makes the harness report the error', async () => {
    for (const broken of ['{"command": "echo', '[1]', '"x"', '{} {}']) {
      const events = eventsOf({ calls: [{ name: 'f', arguments: broken }] }, 'tool-calls')
      const { content } = await clientOf(() => Response.json(whole(events))).messages.create(params)
      expect(content).toMatchObject([{ input: { __unparsedToolInput: { raw: broken, len: broken.length } } }])
      expect(messagesOf({ role: 'assistant', content })).toMatchObject([{ toolCalls: [{ arguments: broken }] }])
      expect(reduce(streamed(events)).inputs).toEqual([broken])
    }
    expect(whole(eventsOf({ calls: [{ name: 'f', arguments: '' }] })).content).toMatchObject([{ input: {} }])
  })

  test('reads an overload from a failed stream', async () => {
    const failure = new RolloutError('upstream.reset', 'the engine went away').failure
    const body = streamed([start, delta({ text: 'half' })]) + anthropicMessages.renderStreamError(failure)
    const answer = clientOf(() => sseOf(body))
      .messages.stream(params)
      .finalMessage()
    await expect(answer).rejects.toMatchObject({ type: 'overloaded_error' })
  })

  test('recognises rejections, token counts and models', async () => {
    const { status, body } = anthropicMessages.renderError(refusal({ ...hello, model: 1 }))
    const refused = clientOf(() => Response.json(body, { status })).messages.create(params)
    await expect(refused).rejects.toBeInstanceOf(Anthropic.BadRequestError)
    const counted = clientOf(() => Response.json(anthropicMessages.renderTokenCount(12))).messages.countTokens(params)
    expect(await counted).toMatchObject({ input_tokens: 12 })
    const list = clientOf(() => Response.json(anthropicMessages.renderModels(['a', 'b'], 0))).models.list()
    expect((await list).data.map(({ id }) => id)).toEqual(['a', 'b'])
    const model = clientOf(() => Response.json(anthropicMessages.renderModel('a', 0))).models.retrieve('a')
    expect(await model).toMatchObject({
      type: 'model',
      id: 'a',
      display_name: 'a',
      created_at: '1970-01-01T00:00:00.000Z',
    })
  })
})

describe('renderError()', () => {
  test.each<[FailureCode, Partial<Failure>, number, string]>([
    ['request.malformed', {}, 400, 'invalid_request_error'],
    ['request.unauthorized', {}, 401, 'authentication_error'],
    ['upstream.refused', { status: 403 }, 403, 'permission_error'],
    ['request.unknown-route', {}, 404, 'not_found_error'],
    ['request.wrong-method', {}, 405, 'invalid_request_error'],
    ['request.too-large', {}, 413, 'request_too_large'],
    ['upstream.rate-limited', {}, 429, 'rate_limit_error'],
    ['internal.bug', {}, 500, 'api_error'],
    ['upstream.failed', {}, 502, 'api_error'],
    ['upstream.timeout', {}, 504, 'timeout_error'],
    ['upstream.overloaded', {}, 529, 'overloaded_error'],
  ])('%s', (code, fields, status, type) => {
    const { failure } = new RolloutError(code, 'what happened', fields)
    expect(anthropicMessages.renderError(failure)).toEqual({
      status,
      headers: {},
      body: { type: 'error', error: { type, message: 'what happened' } },
    })
  })

  test('relays retry-after', () => {
    const { failure } = new RolloutError('upstream.overloaded', 'busy', { retryAfterSeconds: 3 })
    expect(anthropicMessages.renderError(failure)).toMatchObject({ status: 529, headers: { 'retry-after': '3' } })
  })

  test.each([
    [
      "This model's maximum context length is 4096 tokens. However, you requested 100 output tokens and your prompt contains at least 4097 input tokens.",
      4097,
    ],
    [
      "This model's maximum context length is 4096 tokens. However, you requested 5200 tokens (5100 in the messages, 100 in the completion).",
      5100,
    ],
    ['The decoder prompt (length 5000) is longer than the maximum model length of 4096.', 5000],
    ["Input length (5000) exceeds model's maximum context length (4096).", 5000],
    ["The input (5000 tokens) is longer than the model's context length (4096 tokens).", 5000],
    ['prompt is too long: 5000 tokens > 4096 maximum', 5000],
  ])('renders a context overflow with the message that makes harnesses compact: %s', (message, tokens) => {
    const { failure } = new RolloutError('request.context-overflow', message)
    expect(anthropicMessages.renderError(failure)).toMatchObject({
      status: 400,
      body: {
        error: { type: 'invalid_request_error', message: `prompt is too long: ${tokens} tokens > 4096 maximum` },
      },
    })
  })

  test('renders a context overflow without numbers when they are unknown', () => {
    for (const message of ['it does not fit', 'maximum context length is 4096 tokens, prompt contains 4000 tokens']) {
      const { failure } = new RolloutError('request.context-overflow', message)
      expect(anthropicMessages.renderError(failure)).toMatchObject({
        body: { error: { message: `prompt is too long: ${message}` } },
      })
    }
  })

  test('makes clients retry a failed stream only if a retry may help', () => {
    const streamErrorOf = (code: FailureCode): string =>
      anthropicMessages.renderStreamError(new RolloutError(code, 'x').failure) as string
    expect(framesOf(streamErrorOf('upstream.timeout'))).toMatchObject([{ type: 'error' }])
    expect(streamErrorOf('upstream.timeout')).toContain('"overloaded_error"')
    expect(streamErrorOf('upstream.bad-stream')).toContain('"overloaded_error"')
    expect(streamErrorOf('request.context-overflow')).toContain('"invalid_request_error"')
    expect(streamErrorOf('internal.bug')).toContain('"api_error"')
  })
})

describe('the table of fields', () => {
  /** Every path in requests of Claude Code, Qwen Code, OpenCode and pi. */
  const seen = [
    'context_management.edits[].keep',
    'context_management.edits[].type',
    'max_tokens',
    'messages[].content',
    'messages[].content[].cache_control.type',
    'messages[].content[].content',
    'messages[].content[].content[].source.data',
    'messages[].content[].content[].source.media_type',
    'messages[].content[].content[].source.type',
    'messages[].content[].content[].text',
    'messages[].content[].content[].type',
    'messages[].content[].id',
    'messages[].content[].input',
    'messages[].content[].input.__unparsedToolInput.len',
    'messages[].content[].input.__unparsedToolInput.raw',
    'messages[].content[].is_error',
    'messages[].content[].name',
    'messages[].content[].signature',
    'messages[].content[].text',
    'messages[].content[].thinking',
    'messages[].content[].tool_use_id',
    'messages[].content[].type',
    'messages[].role',
    'metadata.user_id',
    'model',
    'output_config.effort',
    'stream',
    'system[].cache_control.type',
    'system[].text',
    'system[].type',
    'temperature',
    'thinking.budget_tokens',
    'thinking.display',
    'thinking.type',
    'tool_choice.type',
    'tools[].cache_control.type',
    'tools[].defer_loading',
    'tools[].description',
    'tools[].eager_input_streaming',
    'tools[].input_schema',
    'tools[].max_uses',
    'tools[].name',
    'tools[].type',
  ]
  const fields = anthropicMessagesFields.map(({ field }) => field)

  test('documents every field that harnesses send', () => {
    expect(seen.filter((path) => !fields.includes(path))).toEqual([])
    expect(fields).toEqual([...new Set(fields)])
  })
})
