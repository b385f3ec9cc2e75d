import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import type { Message } from '../../model/message.ts'
import type { TurnRequest } from '../../model/turn.ts'
import { renderChatBody, sentSampling } from './chat-request.ts'

function requestOf(fields: Partial<TurnRequest>): TurnRequest {
  return {
    dialect: 'another',
    model: 'm',
    messages: [],
    tools: [],
    sampling: { n: 1 },
    stream: false,
    streamUsage: false,
    logprobs: false,
    wire: { api: 'another', text: '{}', body: {} },
    ...fields,
  }
}

function bodyOf(fields: Partial<TurnRequest>): Record<string, unknown> {
  return JSON.parse(renderChatBody(requestOf(fields), { return_token_ids: true })) as Record<string, unknown>
}

describe('renderChatBody()', () => {
  test('passes on a request of the same wire byte for byte, but for what must change', () => {
    const text =
      '{"model":"m", "temperature": 1.0, "vendor": 12345678901234567890, "messages":[{"role":"developer","content":"é\\u00e9"},' +
      '{"role":"assistant","tool_calls":[{"id":"c","function":{"name":"f","arguments":"{\\"a\\":1}"}}]}]}'
    const messages: Message[] = [
      { role: 'developer', content: [{ type: 'text', text: 'éé' }] },
      { role: 'assistant', content: [], toolCalls: [{ id: 'c', name: 'f', arguments: '{"a": 1.0}' }] },
    ]
    const body = JSON.parse(text) as Record<string, unknown>
    const rendered = renderChatBody(requestOf({ messages, wire: { api: 'openai-chat', text, body } }), {
      logprobs: true,
    })
    const expected = text.replace('"developer"', '"system"').replace('"{\\"a\\":1}"', '"{\\"a\\": 1.0}"')
    expect(rendered).toBe(`${expected.slice(0, -1)},"logprobs":true}`)
  })

  test('gives a call of the same wire its sampled name back', () => {
    const text =
      '{"model":"m","messages":[{"role":"assistant","tool_calls":[{"id":"c","function":{"name":"invalid","arguments":"{}"}}]}]}'
    const messages: Message[] = [
      { role: 'assistant', content: [], toolCalls: [{ id: 'c', name: 'bash', arguments: '{"a' }] },
    ]
    const body = JSON.parse(text) as Record<string, unknown>
    const rendered = renderChatBody(requestOf({ messages, wire: { api: 'openai-chat', text, body } }), {})
    expect(rendered).toBe(text.replace('"invalid"', '"bash"').replace('"{}"', String.raw`"\"{\\\"a\""`))
  })

  test('writes a request of another wire from our own words', () => {
    const body = bodyOf({
      messages: [
        { role: 'developer', content: [{ type: 'text', text: 'be brief' }] },
        {
          role: 'user',
          content: [
            { type: 'text', text: 'look' },
            { type: 'image', url: 'data:image/png;base64,AA' },
          ],
        },
        {
          role: 'assistant',
          content: [
            { type: 'text', text: 'one ' },
            { type: 'text', text: 'turn' },
          ],
          reasoning: 'hm',
          toolCalls: [{ id: 'c1', name: 'f', arguments: '{"x": 1.0}' }],
        },
        { role: 'tool', toolCallId: 'c1', content: [{ type: 'image', url: 'http://x/y.png' }], isError: true },
        { role: 'system', content: [{ type: 'text', text: 'late' }] },
      ],
      tools: [{ name: 'f', description: 'd', parameters: { type: 'object' } }],
      toolChoice: { name: 'f' },
      responseFormat: { type: 'json-schema', name: 's', schema: {}, strict: true },
      sampling: { n: 2, temperature: 0.5, maxTokens: 9, stop: ['x'] },
      reasoning: { enabled: true, effort: 'high' },
    })
    expect(body).toEqual({
      model: 'm',
      stream: false,
      return_token_ids: true,
      messages: [
        { role: 'system', content: 'be brief' },
        {
          role: 'user',
          content: [
            { type: 'text', text: 'look' },
            { type: 'image_url', image_url: { url: 'data:image/png;base64,AA' } },
          ],
        },
        {
          role: 'assistant',
          content: 'one turn',
          reasoning_content: 'hm',
          tool_calls: [{ id: 'c1', type: 'function', function: { name: 'f', arguments: '{"x": 1.0}' } }],
        },
        { role: 'tool', tool_call_id: 'c1', content: 'The tool reported an error.' },
        { role: 'user', content: [{ type: 'image_url', image_url: { url: 'http://x/y.png' } }] },
        { role: 'system', content: 'late' },
      ],
      tools: [{ type: 'function', function: { name: 'f', description: 'd', parameters: { type: 'object' } } }],
      tool_choice: { type: 'function', function: { name: 'f' } },
      response_format: { type: 'json_schema', json_schema: { name: 's', schema: {}, strict: true } },
      reasoning_effort: 'high',
      temperature: 0.5,
      max_completion_tokens: 9,
      stop: ['x'],
      n: 2,
    })
  })

  test('quotes arguments that are not JSON, so that the engine can read them', () => {
    const body = bodyOf({
      messages: [{ role: 'assistant', content: [], toolCalls: [{ id: 'c', name: 'f', arguments: '{"a' }] }],
    })
    expect(JSON.stringify(body)).toContain(JSON.stringify(JSON.stringify('{"a')))
  })
})

describe('sentSampling()', () => {
  const maybe = <T>(value: fc.Arbitrary<T>): fc.Arbitrary<T | undefined> => fc.option(value, { nil: undefined })
  const anyWire = fc.record(
    {
      temperature: fc.constantFrom(0, 0.7, 1, null),
      top_p: fc.constantFrom(0.5, 1, null),
      top_k: fc.constantFrom(-1, 20),
      seed: fc.nat(),
      max_tokens: fc.nat(),
      max_completion_tokens: fc.nat(),
      stop: fc.constantFrom('x', ['x', 'y']),
      repetition_penalty: fc.constantFrom(1, 1.1),
      n: fc.constantFrom(1, 2),
    },
    { requiredKeys: [] },
  )
  const anySampling = fc.record({
    temperature: maybe(fc.constant(0.5)),
    topP: maybe(fc.constant(0.9)),
    seed: maybe(fc.nat()),
  })
  const anyForced = fc.record({ max_tokens: fc.nat(), max_completion_tokens: fc.nat() }, { requiredKeys: [] })

  test('gives the parameters of the body that is sent, whatever wire the request came on', () => {
    fc.assert(
      fc.property(anyWire, anySampling, anyForced, fc.boolean(), (wire, forcedSampling, forced, isSameWire) => {
        const text = JSON.stringify({ model: 'm', messages: [], ...wire })
        const api = isSameWire ? 'openai-chat' : 'another'
        const sampling = { n: wire.n ?? 1, ...(wire.seed === undefined ? {} : { seed: wire.seed }) }
        const request = requestOf({ sampling, forcedSampling, wire: { api, text, body: JSON.parse(text) } })
        const body = JSON.parse(renderChatBody(request, forced)) as Record<string, unknown>
        const sent = sentSampling(request, forced)
        const stop = typeof body['stop'] === 'string' ? [body['stop']] : body['stop']
        expect({ ...sent, n: sent.n ?? 1 }).toEqual({
          temperature: body['temperature'] ?? undefined,
          topP: body['top_p'] ?? undefined,
          topK: body['top_k'],
          seed: body['seed'],
          maxTokens: body['max_completion_tokens'] ?? body['max_tokens'],
          stop,
          repetitionPenalty: body['repetition_penalty'],
          n: body['n'] ?? 1,
        })
      }),
    )
  })
})
