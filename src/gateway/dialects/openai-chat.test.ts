import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { RolloutError } from '../../model/failure.ts'
import type { WireEvent } from '../wire-event.ts'
import type { TurnRequest } from '../../model/turn.ts'
import { bareContext, type Route } from './dialect.ts'
import { openaiChat } from './openai-chat.ts'

function parse(value: unknown): TurnRequest {
  const context = bareContext(openaiChat.routes[0] as Route)
  return openaiChat.parseRequest({ text: JSON.stringify(value), value }, context)
}

function refusal(value: unknown): { message: string; param?: string; status: number } {
  try {
    parse(value)
  } catch (error) {
    if (error instanceof RolloutError) return error.failure
    throw error
  }
  throw new Error('was not refused')
}

const hello = { model: 'm', messages: [{ role: 'user', content: 'hello' }] }

describe('parseRequest()', () => {
  test('parses a request of a coding agent', () => {
    const request = parse({
      ...hello,
      messages: [
        { role: 'developer', content: 'be brief' },
        {
          role: 'user',
          content: [
            { type: 'text', text: 'look' },
            { type: 'image_url', image_url: { url: 'data:x' } },
          ],
        },
        {
          role: 'assistant',
          content: null,
          reasoning_content: 'hm',
          tool_calls: [{ id: 'c1', type: 'function', function: { name: 'bash', arguments: '{"a": 1.0}' } }],
        },
        { role: 'tool', tool_call_id: 'c1', content: 'ok' },
      ],
      tools: [{ type: 'function', function: { name: 'bash', parameters: { type: 'object' } } }],
      stream: true,
      stream_options: { include_usage: true },
      max_completion_tokens: 7,
      max_tokens: 9,
    })
    expect(request.messages).toEqual([
      { role: 'developer', content: [{ type: 'text', text: 'be brief' }] },
      {
        role: 'user',
        content: [
          { type: 'text', text: 'look' },
          { type: 'image', url: 'data:x' },
        ],
      },
      {
        role: 'assistant',
        content: [],
        reasoning: 'hm',
        toolCalls: [{ id: 'c1', name: 'bash', arguments: '{"a": 1.0}' }],
      },
      { role: 'tool', toolCallId: 'c1', content: [{ type: 'text', text: 'ok' }] },
    ])
    expect(request.tools).toEqual([{ name: 'bash', parameters: { type: 'object' } }])
    expect(request).toMatchObject({ stream: true, streamUsage: true, sampling: { maxTokens: 7, n: 1 } })
  })

  test('names the invalid field', () => {
    expect(refusal({ ...hello, temperature: 'hot' })).toMatchObject({ param: 'temperature', status: 400 })
    expect(refusal({ ...hello, messages: 'hello' })).toMatchObject({ param: 'messages' })
    expect(refusal({ ...hello, messages: [{ role: 'nobody', content: '' }] })).toMatchObject({
      param: 'messages[0].role',
    })
    expect(refusal({ ...hello, messages: [{ role: 'user', content: [{ type: 'text', text: 5 }] }] })).toMatchObject({
      param: 'messages[0].content[0].text',
    })
    expect(refusal({ messages: hello.messages })).toMatchObject({ param: 'model' })
  })

  test('throws only request errors, for any JSON', () => {
    fc.assert(
      fc.property(fc.jsonValue(), fc.jsonValue(), (messages, other) => {
        for (const body of [messages, { model: 'm', messages }, { ...hello, tools: other, stop: messages, n: other }]) {
          try {
            parse(body)
          } catch (error) {
            expect(error).toBeInstanceOf(RolloutError)
          }
        }
      }),
    )
  })
})

const start: WireEvent = {
  type: 'answer-start',
  id: 'chatcmpl-1',
  model: 'served',
  created: 7,
  promptTokenIds: Int32Array.of(1, 2),
  extra: { system_fingerprint: 'fp' },
}

function streamed(request: TurnRequest, events: readonly WireEvent[]): unknown[] {
  const renderer = openaiChat.createStreamRenderer(request, bareContext(openaiChat.routes[0] as Route))
  const text = events.map((event) => renderer.render(event)).join('')
  return text
    .split('\n\n')
    .filter((frame) => frame !== '')
    .map((frame) => frame.slice('data: '.length))
    .map((data) => (data === '[DONE]' ? data : JSON.parse(data)))
}

describe('createStreamRenderer()', () => {
  const delta: WireEvent = {
    type: 'choice-delta',
    choice: 0,
    text: 'hi',
    ids: Int32Array.of(5),
    logprobs: Float32Array.of(-1),
    wire: {
      index: 0,
      delta: { content: 'hi', vendor_field: 1 },
      token_ids: [5],
      logprobs: { content: [] },
      finish_reason: null,
    },
  }
  const idsOnly: WireEvent = {
    ...delta,
    text: undefined,
    wire: { index: 0, delta: {}, token_ids: [6], finish_reason: null },
  }

  test('relays unknown fields and the requested model name, and hides the fields that only capture requested', () => {
    const frames = streamed(parse({ ...hello, stream: true }), [start, idsOnly, delta, { type: 'answer-end' }])
    expect(frames).toEqual([
      {
        id: 'chatcmpl-1',
        object: 'chat.completion.chunk',
        created: 7,
        model: 'm',
        system_fingerprint: 'fp',
        choices: [{ index: 0, delta: { content: 'hi', vendor_field: 1 }, logprobs: null, finish_reason: null }],
      },
      '[DONE]',
    ])
  })

  test('shows ids and log probabilities to a harness that requested them', () => {
    const request = parse({ ...hello, stream: true, logprobs: true, return_token_ids: true })
    expect(streamed(request, [start, idsOnly, delta])).toMatchObject([
      { prompt_token_ids: [1, 2], choices: [{ token_ids: [6], delta: {} }] },
      { choices: [{ token_ids: [5], logprobs: { content: [] } }] },
    ])
  })

  test('sends usage only when the harness requested it', () => {
    const usage: WireEvent = { type: 'usage', usage: { promptTokens: 2, completionTokens: 1 } }
    expect(streamed(parse({ ...hello, stream: true }), [start, usage])).toEqual([])
    const asked = parse({ ...hello, stream: true, stream_options: { include_usage: true } })
    expect(streamed(asked, [start, usage])).toMatchObject([
      { choices: [], usage: { prompt_tokens: 2, completion_tokens: 1, total_tokens: 3 } },
    ])
  })

  test('renders the events of an engine with another wire', () => {
    const request = parse({ ...hello, stream: true })
    const events: WireEvent[] = [
      start,
      {
        type: 'choice-delta',
        choice: 0,
        reasoning: 'hm',
        toolCalls: [{ index: 0, id: 'c', name: 'f', arguments: '{' }],
      },
      { type: 'choice-delta', choice: 0, finishReason: 'tool-calls' },
    ]
    expect(streamed(request, events)).toMatchObject([
      {
        choices: [
          {
            delta: {
              reasoning_content: 'hm',
              tool_calls: [{ index: 0, id: 'c', type: 'function', function: { name: 'f', arguments: '{' } }],
            },
          },
        ],
      },
      { choices: [{ delta: {}, finish_reason: 'tool_calls' }] },
    ])
  })
})

describe('renderStreamError()', () => {
  const lost = new RolloutError('upstream.reset', 'The engine broke the connection.').failure

  test('clients on OpenAI’s SDKs get the failure in the stream', () => {
    const headers = { 'user-agent': 'OpenAI/JS 7.53.0', 'x-stainless-lang': 'js' }
    const [line, ...rest] = (openaiChat.renderStreamError(lost, headers) ?? '').split('\n\n')
    expect(JSON.parse(line?.replace(/^data: /, '') ?? '')).toMatchObject({
      error: {
        message: 'server error: The engine broke the connection.',
        type: 'server_error',
        code: 'upstream.reset',
      },
    })
    expect(rest).toEqual([''])
  })

  test('clients that retry only after a broken connection get one', () => {
    const qwen = { 'user-agent': 'QwenCode/0.24.4 (linux; x64)', 'x-stainless-lang': 'js' }
    expect(openaiChat.renderStreamError(lost, qwen)).toBeUndefined()
    expect(openaiChat.renderStreamError(lost, { 'user-agent': 'opencode/1.0' })).toBeUndefined()
  })
})

test('parseRequest() reads the reasoning effort, which chat templates depend on', () => {
  expect(parse({ ...hello, reasoning_effort: 'none' }).reasoning).toEqual({ enabled: false, effort: 'none' })
  expect(parse({ ...hello, reasoning_effort: 'low' }).reasoning).toEqual({ enabled: true, effort: 'low' })
  expect(parse({ ...hello, reasoning_effort: null }).reasoning).toBeUndefined()
})

describe('renderError()', () => {
  test('has the fields and codes that clients of this API check', () => {
    const failure = new RolloutError('request.context-overflow', 'too long', { param: 'messages' }).failure
    expect(openaiChat.renderError(failure)).toEqual({
      status: 400,
      headers: {},
      body: {
        error: {
          message: 'too long',
          type: 'invalid_request_error',
          param: 'messages',
          code: 'context_length_exceeded',
        },
      },
    })
    const limited = new RolloutError('upstream.rate-limited', 'slow down', { retryAfterSeconds: 3 }).failure
    expect(openaiChat.renderError(limited)).toMatchObject({ status: 429, headers: { 'retry-after': '3' } })
  })
})
