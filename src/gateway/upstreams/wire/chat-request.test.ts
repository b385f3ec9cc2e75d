import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import type { Message } from '../../../model/message.ts'
import type { TurnRequest } from '../../../model/turn.ts'
import { bareContext } from '../../dialects/dialect.ts'
import { dialects } from '../../dialects/index.ts'
import { llamacppFields, openaiFields, sglangFields, vllmFields, type ChatFields } from './chat-fields.ts'
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
  return JSON.parse(renderChatBody(requestOf(fields), { return_token_ids: true }, vllmFields).text) as Record<
    string,
    unknown
  >
}

describe('renderChatBody()', () => {
  test('a rewritten chat request keeps its allowed template variables and its reasoning effort', () => {
    const body = { chat_template_kwargs: { enable_thinking: false, chat_template: 'x' }, reasoning_effort: 'low' }
    const wire = { api: 'rewritten', text: JSON.stringify(body), body }
    const reasoning = { enabled: true, effort: 'low' }
    const rendered = bodyOf({ dialect: 'openai-chat', reasoning, wire })
    expect(rendered).toMatchObject({ chat_template_kwargs: { enable_thinking: false }, reasoning_effort: 'low' })
    expect(rendered['chat_template_kwargs']).not.toHaveProperty('chat_template')
    // Other APIs have no such field.
    expect(bodyOf({ dialect: 'anthropic-messages', wire })).not.toHaveProperty('chat_template_kwargs')
  })

  test('relays a request of the same wire byte for byte, except for necessary changes', () => {
    const text =
      '{"model":"m", "temperature": 1.0, "seed": 12345678901234567890, "messages":[{"role":"developer","content":"é\\u00e9"},' +
      '{"role":"assistant","tool_calls":[{"id":"c","function":{"name":"f","arguments":"{\\"a\\":1}"}}]}]}'
    const messages: Message[] = [
      { role: 'developer', content: [{ type: 'text', text: 'éé' }] },
      { role: 'assistant', content: [], toolCalls: [{ id: 'c', name: 'f', arguments: '{"a": 1.0}' }] },
    ]
    const body = JSON.parse(text) as Record<string, unknown>
    const request = requestOf({ messages, wire: { api: 'openai-chat', text, body } })
    const { text: rendered, dropped } = renderChatBody(request, { logprobs: true }, vllmFields)
    const expected = text.replace('"developer"', '"system"').replace('"{\\"a\\":1}"', '"{\\"a\\": 1.0}"')
    expect(rendered).toBe(`${expected.slice(0, -1)},"logprobs":true}`)
    expect(dropped).toEqual([])
  })

  test('restores the sampled name of a call of the same wire', () => {
    const text =
      '{"model":"m","messages":[{"role":"assistant","tool_calls":[{"id":"c","function":{"name":"invalid","arguments":"{}"}}]}]}'
    const messages: Message[] = [
      { role: 'assistant', content: [], toolCalls: [{ id: 'c', name: 'bash', arguments: '{"a' }] },
    ]
    const body = JSON.parse(text) as Record<string, unknown>
    const request = requestOf({ messages, wire: { api: 'openai-chat', text, body } })
    const { text: rendered } = renderChatBody(request, {}, vllmFields)
    expect(rendered).toBe(text.replace('"invalid"', '"bash"').replace('"{}"', String.raw`"\"{\\\"a\""`))
  })

  test('renders a request of another wire from the model', () => {
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

describe('fields of the harness', () => {
  const ENGINES: [string, ChatFields][] = [
    ['vLLM', vllmFields],
    ['SGLang', sglangFields],
    ['llama.cpp', llamacppFields],
    ['another server', openaiFields],
  ]

  function rendered(id: string, value: object, fields: ChatFields): Record<string, unknown> {
    const dialect = dialects.find((one) => one.id === id)!
    const route = dialect.routes.find(({ kind }) => kind === 'generate')!
    const text = JSON.stringify(value)
    const context = { ...bareContext(route), wildcards: ['m'] }
    const request = dialect.parseRequest({ text, value: JSON.parse(text) }, context)
    return JSON.parse(renderChatBody(request, {}, fields).text) as Record<string, unknown>
  }

  test.each(ENGINES)('%s: every field that the six CLIs send to engines arrives', (_, fields) => {
    const tools = [
      { type: 'function', function: { name: 'f', description: 'd', parameters: { type: 'object' }, strict: false } },
    ]
    const image = { type: 'image_url', image_url: { url: 'data:image/png;base64,AA==' } }
    const call = { id: 'c', type: 'function', function: { name: 'f', arguments: '{}' } }
    const body = {
      model: 'm',
      messages: [
        { role: 'system', content: 's' },
        { role: 'user', content: [{ type: 'text', text: 'look' }, image] },
        { role: 'assistant', content: null, reasoning_content: 'hm', tool_calls: [call] },
        { role: 'tool', tool_call_id: 'c', content: 'ok' },
      ],
      tools,
      tool_choice: 'auto',
      stream: true,
      stream_options: { include_usage: true },
      max_tokens: 9,
      max_completion_tokens: 9,
      reasoning_effort: 'medium',
      temperature: 0.5,
      top_p: 0.9,
      chat_template_kwargs: { enable_thinking: false },
    }
    expect(rendered('openai-chat', body, fields)).toEqual(body)
    expect(rendered('openai-chat', { ...body, store: false }, fields)).toEqual(body)
  })

  test('a field of one engine is no sampling parameter of another engine', () => {
    const text = '{"model":"m","messages":[],"repetition_penalty":1.5}'
    const request = requestOf({ wire: { api: 'openai-chat', text, body: JSON.parse(text) } })
    expect(sentSampling(request, {}, vllmFields)).toEqual({ repetitionPenalty: 1.5 })
    expect(sentSampling(request, {}, llamacppFields)).toEqual({})
    expect(renderChatBody(request, {}, llamacppFields)).toEqual({
      text: '{"model":"m","messages":[]}',
      dropped: ['repetition_penalty'],
    })
  })

  test('content of an unknown type becomes text, and a media part keeps no reference to a stored file', () => {
    const content = [
      { type: 'image_embeds', image_embeds: 'x' },
      { type: 'image_url', image_url: { url: 'data:,', detail: 'low' }, uuid: 'of-another-session' },
      { type: 'text', text: 'a', image_url: { url: 'http://169.254.169.254/' } },
    ]
    const { messages } = rendered('openai-chat', { model: 'm', messages: [{ role: 'user', content }] }, vllmFields)
    expect(messages).toEqual([
      {
        role: 'user',
        content: [
          { type: 'text', text: '[unsupported content: image_embeds]' },
          { type: 'image_url', image_url: { url: 'data:,', detail: 'low' } },
          { type: 'text', text: 'a' },
        ],
      },
    ])
  })

  test('template variables are the documented switches, and none that replaces the template', () => {
    const kwargs = { enable_thinking: false, thinking: 'x', chat_template: '{{ x }}', tokenize: true, messages: [] }
    const body = { model: 'm', messages: [{ role: 'user', content: 'hi' }], chat_template_kwargs: kwargs }
    expect(rendered('openai-chat', body, vllmFields)['chat_template_kwargs']).toEqual({ enable_thinking: false })
  })

  // --- no other field, whatever is sent -------------------------------------------------------------------------------

  const parameters = { type: 'object', properties: { n: { type: 'number' } } }
  const BODIES: Record<string, object> = {
    'openai-chat': {
      model: 'm',
      messages: [
        { role: 'developer', content: 'be brief' },
        {
          role: 'user',
          content: [
            { type: 'text', text: 'a' },
            { type: 'image_url', image_url: { url: 'data:,' } },
          ],
        },
        {
          role: 'assistant',
          content: 'b',
          tool_calls: [{ id: 'c', type: 'function', function: { name: 'f', arguments: '{}' } }],
        },
        { role: 'tool', tool_call_id: 'c', content: [{ type: 'text', text: 'ok' }] },
      ],
      tools: [{ type: 'function', function: { name: 'f', parameters } }],
      tool_choice: { type: 'function', function: { name: 'f' } },
      response_format: { type: 'json_schema', json_schema: { name: 's', schema: parameters } },
      stream_options: { include_usage: true },
      chat_template_kwargs: { enable_thinking: true },
    },
    'openai-responses': {
      model: 'm',
      instructions: 'be brief',
      input: [
        {
          role: 'user',
          content: [
            { type: 'input_text', text: 'a' },
            { type: 'input_image', image_url: 'data:,' },
          ],
        },
        { type: 'function_call', call_id: 'c', name: 'f', arguments: '{}' },
        { type: 'function_call_output', call_id: 'c', output: 'ok' },
      ],
      tools: [{ type: 'function', name: 'f', parameters }],
      text: { format: { type: 'json_schema', name: 's', schema: parameters } },
      reasoning: { effort: 'low' },
    },
    'anthropic-messages': {
      model: 'm',
      max_tokens: 9,
      system: [{ type: 'text', text: 'be brief' }],
      messages: [
        {
          role: 'user',
          content: [
            { type: 'text', text: 'a' },
            { type: 'image', source: { type: 'base64', data: 'AA==' } },
          ],
        },
        { role: 'assistant', content: [{ type: 'tool_use', id: 'c', name: 'f', input: {} }] },
        { role: 'user', content: [{ type: 'tool_result', tool_use_id: 'c', content: [{ type: 'text', text: 'ok' }] }] },
      ],
      tools: [{ name: 'f', input_schema: parameters }],
      tool_choice: { type: 'any' },
      output_config: { effort: 'low' },
    },
    'google-generate': {
      systemInstruction: { parts: [{ text: 'be brief' }] },
      contents: [
        { role: 'user', parts: [{ text: 'a' }, { inlineData: { mimeType: 'image/png', data: 'AA==' } }] },
        { role: 'model', parts: [{ functionCall: { name: 'f', args: {} } }] },
        { role: 'user', parts: [{ functionResponse: { name: 'f', response: { output: 'ok' } } }] },
      ],
      tools: [{ functionDeclarations: [{ name: 'f', parameters }] }],
      generationConfig: { temperature: 1, responseMimeType: 'application/json', responseSchema: parameters },
    },
  }

  /** Names of fields that engines read. */
  const NAMES = [
    'kv_transfer_params logit_bias bad_words allowed_token_ids stop_token_ids ignore_eos min_tokens',
    'logits_processors prompt_token_ids prompt_embeds input_ids mm_processor_kwargs custom_logit_processor',
    'lora_path lora return_hidden_states session_params bootstrap_host grammar json_schema slot_id id_slot',
    'cache_prompt samplers n_probs return_tokens chat_template documents echo add_special_tokens',
    'add_generation_prompt request_id priority cache_salt guided_json guided_regex guided_choice',
    'guided_grammar structured_outputs regex ebnf structural_tag extra_body nvext vllm_xargs metadata',
    'continue_final_message uuid prompt_logprobs include_stop_str_in_output truncate_prompt_tokens prefix',
    'partial __proto__',
  ].flatMap((line) => line.split(' '))

  /** All fields that an engine may read from a harness, with scalar values. */
  const ALLOWED = new RegExp(
    '^(?:model|stream|stream_options(?:\\.include_usage)?|temperature|top_p|top_k|min_p|n|seed|stop(?:\\[\\])?|max_tokens' +
      '|max_completion_tokens|presence_penalty|frequency_penalty|repetition_penalty|logprobs|top_logprobs' +
      '|parallel_tool_calls|reasoning_effort|chat_template_kwargs(?:\\.enable_thinking)?' +
      '|messages(?:\\[\\](?:\\.(?:role|name|content|reasoning_content|reasoning|tool_call_id' +
      '|content\\[\\](?:\\.(?:type|text|image_url(?:\\.(?:url|detail))?))?' +
      '|tool_calls(?:\\[\\](?:\\.(?:id|type|function(?:\\.(?:name|arguments))?))?)?))?)?' +
      '|tools(?:\\[\\](?:\\.(?:type|function(?:\\.(?:name|description|strict|parameters(?:\\..*)?))?))?)?' +
      '|tool_choice(?:\\.(?:type|function(?:\\.name)?))?' +
      '|response_format(?:\\.(?:type|json_schema(?:\\.(?:name|description|strict|schema(?:\\..*)?))?))?)$',
  )

  const anyName = fc.oneof(fc.constantFrom(...NAMES), fc.string())
  const anyExtra = fc.record({ at: fc.nat(), name: anyName, value: fc.jsonValue() })

  // Requests of the other APIs are rendered from the model, equally for every engine.
  const CASES = Object.keys(BODIES).flatMap((id) => {
    const engines = id === 'openai-chat' ? ENGINES : ENGINES.slice(0, 1)
    return engines.map(([engine, fields]) => [id, engine, fields] as const)
  })

  test.each(CASES)(
    '%s to %s: no field outside the allow-list is sent, at any path',
    (id, _, fields) => {
      let read = 0
      fc.assert(
        fc.property(fc.array(anyExtra, { minLength: 1, maxLength: 6 }), (extras) => {
          const body = JSON.parse(JSON.stringify(BODIES[id])) as Record<string, unknown>
          const before = new Set(pathsOf(body))
          const places = objectsOf(body)
          for (const { at, name, value } of extras) {
            const place = places[at % places.length]!
            if (!Object.hasOwn(place, name)) Object.defineProperty(place, name, { value, enumerable: true })
          }
          let sent: Record<string, unknown>
          try {
            sent = rendered(id, body, fields)
          } catch {
            // The API itself rejects a field of a wrong type.
            return
          }
          read += 1
          expect(pathsOf(sent).filter((path) => !ALLOWED.test(path))).toEqual([])
          if (id === 'openai-chat') expect([...before].filter((path) => !pathsOf(sent).includes(path))).toEqual([])
        }),
        { numRuns: 100 },
      )
      expect(read).toBeGreaterThan(25)
    },
    60_000,
  )
})

/** The objects of a body, except for those with arbitrary members: schemas and arguments. */
function objectsOf(value: unknown): object[] {
  if (Array.isArray(value)) return value.flatMap(objectsOf)
  if (typeof value !== 'object' || value === null) return []
  const own = ['parameters', 'schema', 'input_schema', 'responseSchema', 'args', 'input', 'response']
  return [value, ...Object.entries(value).flatMap(([name, inner]) => (isOwn(name, inner, own) ? [] : objectsOf(inner)))]
}

function isOwn(name: string, value: unknown, own: readonly string[]): boolean {
  return own.includes(name) && !Array.isArray(value)
}

/** The path of every member, without list indexes. */
function pathsOf(value: unknown, path = ''): string[] {
  if (Array.isArray(value)) return value.flatMap((item) => [`${path}[]`, ...pathsOf(item, `${path}[]`)])
  if (typeof value !== 'object' || value === null) return []
  return Object.entries(value).flatMap(([name, inner]) => {
    const at = path === '' ? name : `${path}.${name}`
    return [at, ...pathsOf(inner, at)]
  })
}

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

  test('returns the parameters of the body that is sent, for every wire', () => {
    fc.assert(
      fc.property(anyWire, anySampling, anyForced, fc.boolean(), (wire, forcedSampling, forced, isSameWire) => {
        const text = JSON.stringify({ model: 'm', messages: [], ...wire })
        const api = isSameWire ? 'openai-chat' : 'another'
        const sampling = { n: wire.n ?? 1, ...(wire.seed === undefined ? {} : { seed: wire.seed }) }
        const request = requestOf({ sampling, forcedSampling, wire: { api, text, body: JSON.parse(text) } })
        const body = JSON.parse(renderChatBody(request, forced, vllmFields).text) as Record<string, unknown>
        const sent = sentSampling(request, forced, vllmFields)
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
