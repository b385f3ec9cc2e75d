import { ApiError, GoogleGenAI, type GenerateContentResponse } from '@google/genai'
import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { SseParser } from '../../lib/net/sse.ts'
import { anyCodePoint } from '../../../test/support/any-code-point.ts'
import { RolloutError, type Failure } from '../../model/failure.ts'
import type { AssistantMessage, Message, ToolCall } from '../../model/message.ts'
import type { ChoiceDelta, StreamEvent } from '../../model/stream-event.ts'
import type { TurnRequest, TurnResponse } from '../../model/turn.ts'
import { TurnCapture } from '../capture/capture-turn.ts'
import { createDetector } from '../http/detect.ts'
import { createTextSealer } from '../sessions/text-sealer.ts'
import { bareContext, type RequestContext } from './dialect.ts'
import { googleGenerateFields } from './google-generate-fields.ts'
import { toJsonSchema } from './google-generate-schema.ts'
import { googleGenerate } from './google-generate.ts'
import { runs } from '../../../test/support/runs.ts'

const detect = createDetector([googleGenerate])
const sealer = createTextSealer('the session key')

const STREAM = '/v1beta/models/m:streamGenerateContent?alt=sse'
const WHOLE = '/v1beta/models/m:generateContent'
const COUNT = '/v1beta/models/m:countTokens'

function contextOf(url: string, method = 'POST', headers: Record<string, string> = {}): RequestContext {
  return { ...detect({ method, url, headers }).context, recall: () => undefined, sealer }
}

function parse(value: unknown, url = STREAM): TurnRequest {
  return googleGenerate.parseRequest({ text: JSON.stringify(value), value }, contextOf(url))
}

function messagesOf(...contents: unknown[]): Message[] {
  return parse({ contents }).messages
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

const said = (text: string): unknown => ({ role: 'user', parts: [{ text }] })
const hello = { contents: [said('hello')] }

// --- requests ---------------------------------------------------------------------------------------------------------

describe('parseRequest()', () => {
  test('parses a request of Gemini CLI within a session', () => {
    const request = parse({
      contents: [
        { parts: [{ text: 'where we are' }, { text: 'fix it' }], role: 'user' },
        {
          parts: [
            { text: 'I look around.' },
            {
              functionCall: { id: 'c1', args: { command: 'ls', deep: { a: [1] } }, name: 'run' },
              thoughtSignature: 'c29tZW9uZSBlbHNl',
            },
            { functionCall: { id: 'c2', args: { file_path: 'x' }, name: 'read_file' } },
          ],
          role: 'model',
        },
        {
          parts: [
            { functionResponse: { name: 'run', response: { output: 'a.txt\n' }, id: 'c1' } },
            { functionResponse: { name: 'read_file', response: { error: 'no such file' }, id: 'c2' } },
          ],
          role: 'user',
        },
      ],
      systemInstruction: { parts: [{ text: 'be brief' }], role: 'user' },
      tools: [
        {
          functionDeclarations: [
            { name: 'run', description: 'runs', parametersJsonSchema: { type: 'object', properties: {} } },
            { name: 'stop_it' },
          ],
        },
      ],
      generationConfig: { temperature: 1, topP: 0.95, topK: 64, thinkingConfig: { includeThoughts: true } },
    })
    expect(request).toMatchObject({
      dialect: 'google-generate',
      model: 'm',
      stream: true,
      streamUsage: true,
      logprobs: false,
      sampling: { temperature: 1, topP: 0.95, topK: 64, n: 1 },
      reasoning: { enabled: true },
      wire: { api: 'google-generate' },
    })
    expect(request.messages).toEqual([
      { role: 'system', content: [{ type: 'text', text: 'be brief' }] },
      {
        role: 'user',
        content: [
          { type: 'text', text: 'where we are' },
          { type: 'text', text: 'fix it' },
        ],
      },
      {
        role: 'assistant',
        content: [{ type: 'text', text: 'I look around.' }],
        toolCalls: [
          { id: 'c1', name: 'run', arguments: '{"command":"ls","deep":{"a":[1]}}' },
          { id: 'c2', name: 'read_file', arguments: '{"file_path":"x"}' },
        ],
      },
      { role: 'tool', toolCallId: 'c1', content: [{ type: 'text', text: 'a.txt\n' }] },
      { role: 'tool', toolCallId: 'c2', content: [{ type: 'text', text: 'no such file' }], isError: true },
    ])
    expect(request.tools).toEqual([
      { name: 'run', description: 'runs', parameters: { type: 'object', properties: {} } },
      { name: 'stop_it' },
    ])
  })

  test('reads snake_case as camelCase, except in arguments, results and schemas', () => {
    const camel = {
      systemInstruction: { parts: [{ text: 's' }] },
      contents: [
        { role: 'user', parts: [{ inlineData: { mimeType: 'image/png', data: 'AAAA' } }] },
        { role: 'user', parts: [{ fileData: { mimeType: 'image/png', fileUri: 'https://x/y' } }] },
        { role: 'model', parts: [{ functionCall: { name: 'f', args: { a_b: 1 } }, thoughtSignature: 'x' }] },
        { role: 'user', parts: [{ functionResponse: { name: 'f', response: { out_put: 2 } } }] },
      ],
      tools: [
        { functionDeclarations: [{ name: 'f', parametersJsonSchema: { properties: { a_b: { type: 'string' } } } }] },
      ],
      toolConfig: { functionCallingConfig: { mode: 'ANY', allowedFunctionNames: ['f'] } },
      generationConfig: {
        maxOutputTokens: 5,
        topP: 0.5,
        topK: 3,
        stopSequences: ['x'],
        candidateCount: 2,
        presencePenalty: 1,
        frequencyPenalty: -1,
        responseMimeType: 'application/json',
        responseJsonSchema: { properties: { a_b: {} } },
        responseLogprobs: true,
        thinkingConfig: { includeThoughts: true, thinkingLevel: 'LOW', thinkingBudget: 5 },
      },
    }
    const { wire: _snakeWire, ...snake } = parse(toSnakeCase(camel))
    const { wire: _camelWire, ...expected } = parse(camel)
    expect(snake).toEqual(expected)
    expect(expected.messages.at(-2)).toMatchObject({ toolCalls: [{ arguments: '{"a_b":1}' }] })
    expect(expected.messages.at(-1)).toMatchObject({ content: [{ text: '{"out_put":2}' }] })
    expect(expected.tools[0]?.parameters).toEqual({ properties: { a_b: { type: 'string' } } })
    expect(expected.toolChoice).toEqual({ name: 'f' })
    expect(expected.reasoning).toEqual({ enabled: true, effort: 'low' })
  })

  test('accepts a system instruction as string, part or content', () => {
    const system = { role: 'system', content: [{ type: 'text', text: 's' }] }
    for (const systemInstruction of ['s', { text: 's' }, { parts: { text: 's' } }, { role: 'user', parts: ['s'] }]) {
      expect(parse({ ...hello, systemInstruction }).messages[0]).toEqual(system)
    }
    expect(parse({ ...hello, systemInstruction: null }).messages).toHaveLength(1)
  })

  test('accepts a single content or part without brackets, as in the examples of Vertex', () => {
    const request = parse({ contents: { role: 'user', parts: { text: 'hi' } }, tools: { googleSearch: {} } })
    expect(request.messages).toEqual([{ role: 'user', content: [{ type: 'text', text: 'hi' }] }])
    expect(parse({ contents: 'hi' }).messages).toEqual(request.messages)
  })

  test('accepts every role, and an absent role', () => {
    const roles = ['system', 'developer', 'user', undefined, 'model', 'function'].map((role) => ({
      role,
      parts: [{ text: 'x' }],
    }))
    expect(messagesOf(...roles).map((message) => message.role)).toEqual([
      'system',
      'developer',
      'user',
      'user',
      'assistant',
      'user',
    ])
    expect(messagesOf({ parts: [{ functionCall: { name: 'f' } }] })).toMatchObject([
      { role: 'assistant', toolCalls: [{ id: 'call_0_f', name: 'f', arguments: '{}' }] },
    ])
  })

  test('joins consecutive model contents to one turn, and their texts to one text', () => {
    const messages = messagesOf(
      said('go'),
      { role: 'model', parts: [{ text: 'one ', thought: true }] },
      { role: 'model', parts: [{ text: 'two', thought: true }, { text: 'he' }] },
      { role: 'model', parts: [] },
      { role: 'model', parts: [{ text: 'llo' }, { functionCall: { id: 'c', name: 'f', args: {} } }, { text: '!' }] },
      said('on'),
      { role: 'model', parts: [{ text: 'again' }] },
    )
    expect(messages.slice(1)).toEqual([
      {
        role: 'assistant',
        content: [{ type: 'text', text: 'hello!' }],
        reasoning: 'one two',
        toolCalls: [{ id: 'c', name: 'f', arguments: '{}' }],
      },
      { role: 'user', content: [{ type: 'text', text: 'on' }] },
      { role: 'assistant', content: [{ type: 'text', text: 'again' }], toolCalls: [] },
    ])
  })

  test('assigns a result without id to the first open call of its name', () => {
    const call = (name: string, n: number): unknown => ({ functionCall: { name, args: { n } } })
    const result = (name: string, output: string): unknown => ({ functionResponse: { name, response: { output } } })
    const messages = messagesOf(
      { role: 'model', parts: [call('f', 1), call('g', 2), call('f', 3)] },
      { role: 'user', parts: [result('f', 'same'), result('f', 'same'), result('g', '2')] },
      { role: 'model', parts: [call('f', 4)] },
      { role: 'function', parts: [{ functionResponse: { id: 'other', name: 'f', response: { output: '4' } } }] },
    )
    expect(messages.map((message) => (message.role === 'tool' ? message.toolCallId : message.role))).toEqual([
      'assistant',
      'call_0_f',
      'call_2_f',
      'call_1_g',
      'assistant',
      'call_3_f',
    ])
  })

  test('assigns no result to calls of an earlier turn', () => {
    const called = { role: 'model', parts: [{ functionCall: { name: 'f' } }] }
    const messages = messagesOf(called, said('never mind'), called, {
      parts: [{ functionResponse: { name: 'f', response: { output: 'x' } } }],
    })
    expect(messages.at(-1)).toMatchObject({ role: 'tool', toolCallId: 'call_1_f' })
  })

  test('keeps the id of a result whose call is not in the history', () => {
    expect(messagesOf({ parts: [{ functionResponse: { id: 'f__x', name: 'f', response: {} } }] })).toEqual([
      { role: 'tool', toolCallId: 'f__x', content: [] },
    ])
    expect(messagesOf({ parts: [{ functionResponse: { name: 'f', response: null } }] })).toEqual([
      { role: 'tool', toolCallId: 'result_of_f', content: [] },
    ])
  })

  test('drops only the results that a resumed session repeats, with their images', () => {
    const picture = { inlineData: { mimeType: 'image/png', data: 'AAAA' } }
    const result = (id: string, output: string): unknown => ({
      functionResponse: { id, name: 'f', response: { output } },
    })
    const messages = messagesOf(
      {
        role: 'model',
        parts: ['a', 'b'].map((id) => ({ functionCall: { id, name: 'f' } })),
      },
      {
        role: 'user',
        parts: [
          result('a', 'x'),
          picture,
          result('b', 'x'),
          result('a', 'x'),
          picture,
          result('b', 'x'),
          result('b', 'y'),
        ],
      },
    )
    const image = { type: 'image', url: 'data:image/png;base64,AAAA' }
    expect(messages.slice(1)).toEqual([
      { role: 'tool', toolCallId: 'a', content: [{ type: 'text', text: 'x' }, image] },
      { role: 'tool', toolCallId: 'b', content: [{ type: 'text', text: 'x' }] },
      { role: 'tool', toolCallId: 'b', content: [{ type: 'text', text: 'y' }] },
    ])
  })

  test('adds images to their result, and other user content after the results', () => {
    const picture = { inlineData: { mimeType: 'image/png', data: 'A-_A' } }
    const sound = { inlineData: { mimeType: 'audio/wav', data: 'BBBB' } }
    const image = { type: 'image', url: 'data:image/png;base64,A+/A' }
    const messages = messagesOf({
      role: 'user',
      parts: [
        { text: 'before' },
        { functionResponse: { id: 'a', name: 'f', response: { output: 'x' }, parts: [picture] } },
        picture,
        sound,
        { text: 'after' },
        picture,
      ],
    })
    expect(messages).toEqual([
      {
        role: 'tool',
        toolCallId: 'a',
        content: [{ type: 'text', text: 'x' }, image, image, { type: 'other', wire: sound }],
      },
      { role: 'user', content: [{ type: 'text', text: 'before' }, { type: 'text', text: 'after' }, image] },
    ])
  })

  test.each([
    [{ output: 'as is ' }, 'as is ', undefined],
    [{ output: { a: 1 } }, '{"a":1}', undefined],
    [{ output: ['x'] }, '["x"]', undefined],
    [{ output: '', error: null }, '', undefined],
    [{ result: 5 }, '5', undefined],
    [{ name: 'f', content: 'by the AI SDK' }, 'by the AI SDK', undefined],
    [{ name: 'other', content: 'x' }, '{"name":"other","content":"x"}', undefined],
    [{ error: 'broke' }, 'broke', true],
    [{ error: { code: 1 } }, '{"code":1}', true],
    [{ output: 'half', error: 'broke' }, '{"output":"half","error":"broke"}', true],
    [{ temperature: 20 }, '{"temperature":20}', undefined],
    ['plain', 'plain', undefined],
    [[1], '[1]', undefined],
  ])('converts the result %j to text', (response, text, isError) => {
    const [message] = messagesOf({ parts: [{ functionResponse: { id: 'a', name: 'f', response } }] })
    expect(message).toEqual({
      role: 'tool',
      toolCallId: 'a',
      content: text === '' ? [] : [{ type: 'text', text }],
      ...(isError ? { isError } : {}),
    })
  })

  test('converts images that an engine can read, and keeps other media unchanged', () => {
    const code = { executableCode: { language: 'PYTHON', code: '1' } }
    const movie = { fileData: { mimeType: 'video/mp4', fileUri: 'https://x/y' }, videoMetadata: { fps: 1 } }
    const stored = { fileData: { mimeType: 'image/png', fileUri: 'gs://bucket/x.png' } }
    const [user, model] = messagesOf(
      {
        role: 'user',
        parts: [
          { fileData: { mimeType: 'image/png', fileUri: 'https://x/y' } },
          { fileData: { fileUri: 'https://x/y.jpg?z' } },
          movie,
          stored,
          { newThing: { a: 1 } },
          {},
          { text: '' },
        ],
      },
      { role: 'model', parts: [code, { codeExecutionResult: { outcome: 'OUTCOME_OK' } }] },
    )
    expect(user?.content).toEqual([
      { type: 'image', url: 'https://x/y' },
      { type: 'image', url: 'https://x/y.jpg?z' },
      { type: 'other', wire: movie },
      { type: 'other', wire: stored },
      { type: 'other', wire: { newThing: { a: 1 } } },
    ])
    expect(model?.content).toEqual([
      { type: 'other', wire: code },
      { type: 'other', wire: { codeExecutionResult: { outcome: 'OUTCOME_OK' } } },
    ])
  })

  test('ignores signatures of another origin', () => {
    for (const thoughtSignature of [
      'skip_thought_signature_validator',
      'AAAA',
      '',
      null,
      createTextSealer('x').seal('{}'),
    ]) {
      expect(messagesOf({ role: 'model', parts: [{ text: 'x', thoughtSignature }] })).toEqual([
        { role: 'assistant', content: [{ type: 'text', text: 'x' }], toolCalls: [] },
      ])
    }
  })

  test('maps the generation config', () => {
    const request = parse({
      ...hello,
      generationConfig: {
        maxOutputTokens: 9,
        temperature: 0.5,
        topP: 0.9,
        topK: 40.0,
        stopSequences: ['a', 'b'],
        candidateCount: 3,
        seed: 7,
        presencePenalty: 0.1,
        frequencyPenalty: 0.2,
        responseLogprobs: true,
        logprobs: 2,
        mediaResolution: 'X',
      },
      safetySettings: [{ category: 'X' }],
      cachedContent: 'c',
      labels: { a: 'b' },
    })
    expect(request.sampling).toEqual({
      maxTokens: 9,
      temperature: 0.5,
      topP: 0.9,
      topK: 40,
      stop: ['a', 'b'],
      n: 3,
      seed: 7,
      presencePenalty: 0.1,
      frequencyPenalty: 0.2,
    })
    expect(request.logprobs).toBe(true)
    expect(parse({ ...hello, generationConfig: { temperature: null, stopSequences: null } }).sampling).toEqual({ n: 1 })
  })

  test.each([
    [undefined, undefined],
    [{}, undefined],
    [{ includeThoughts: false }, undefined],
    [{ includeThoughts: true }, { enabled: true }],
    [{ thinkingBudget: 0, includeThoughts: true }, { enabled: false }],
    [{ thinkingBudget: -1 }, { enabled: true }],
    [{ thinkingLevel: 'HIGH' }, { enabled: true, effort: 'high' }],
    [{ thinkingLevel: 'THINKING_LEVEL_UNSPECIFIED' }, undefined],
  ])('reads the thinking config %j', (thinkingConfig, reasoning) => {
    expect(parse({ ...hello, generationConfig: { thinkingConfig } }).reasoning).toEqual(reasoning)
  })

  test('maps the response format', () => {
    const formatOf = (generationConfig: unknown): unknown => parse({ ...hello, generationConfig }).responseFormat
    const responseMimeType = 'application/json'
    const schema = { type: 'OBJECT', properties: { type: { type: 'STRING' } } }
    const asked = { type: 'json-schema', name: 'response', schema: toJsonSchema(schema) }
    expect(formatOf({ responseMimeType })).toEqual({ type: 'json-object' })
    expect(formatOf({ responseMimeType, responseSchema: schema })).toEqual(asked)
    expect(formatOf({ responseMimeType, responseJsonSchema: schema })).toEqual(asked)
    expect(formatOf({ responseMimeType, _responseJsonSchema: schema })).toEqual(asked)
    expect(formatOf({ responseMimeType: 'text/plain', responseSchema: schema })).toBeUndefined()
  })

  test('drops tools that only Google runs, and a tool choice without functions', () => {
    const request = parse({
      ...hello,
      tools: [{ googleSearch: {} }, { codeExecution: {} }, { urlContext: {} }],
      toolConfig: { functionCallingConfig: { mode: 'ANY' } },
    })
    expect(request.tools).toEqual([])
    expect(request.toolChoice).toBeUndefined()
  })

  test.each([
    ['AUTO', undefined, 'auto'],
    ['auto', undefined, 'auto'],
    ['VALIDATED', ['f'], 'auto'],
    ['NONE', undefined, 'none'],
    ['ANY', undefined, 'required'],
    ['ANY', ['f'], { name: 'f' }],
    ['ANY', ['f', 'g'], 'required'],
    ['MODE_UNSPECIFIED', undefined, undefined],
    [undefined, undefined, undefined],
  ])('reads the calling mode %s with %j', (mode, allowedFunctionNames, choice) => {
    const tools = [{ functionDeclarations: [{ name: 'f' }, { name: 'g' }] }]
    const toolConfig = { functionCallingConfig: { mode, allowedFunctionNames } }
    expect(parse({ ...hello, tools, toolConfig }).toolChoice).toEqual(choice)
  })

  test('counts the contents alone or a whole request', () => {
    const expected = parse({ ...hello, systemInstruction: 's' }).messages
    expect(parse(hello, COUNT)).toMatchObject({ stream: false, messages: expected.slice(1) })
    const generateContentRequest = { model: 'models/m', ...hello, systemInstruction: 's' }
    expect(parse({ generateContentRequest }, COUNT).messages).toEqual(expected)
    expect(parse({ generate_content_request: generateContentRequest }, COUNT).messages).toEqual(expected)
    expect(googleGenerate.renderTokenCount(7)).toEqual({ totalTokens: 7 })
  })

  test('names the invalid field', () => {
    expect(refusal([])).toMatchObject({ code: 'request.malformed', status: 400 })
    expect(refusal({})).toMatchObject({ param: 'contents' })
    expect(refusal({ contents: [] })).toMatchObject({ param: 'contents' })
    expect(refusal({ contents: 5 })).toMatchObject({ param: 'contents' })
    expect(refusal({ contents: [{ role: 'nobody' }] })).toMatchObject({ param: 'contents[0].role' })
    expect(refusal({ contents: [{ parts: [{ text: 5 }] }] })).toMatchObject({ param: 'contents[0].parts[0].text' })
    expect(refusal({ contents: [{ parts: [{ function_call: {} }] }] })).toMatchObject({
      param: 'contents[0].parts[0].functionCall.name',
    })
    expect(refusal({ ...hello, generation_config: { temperature: 'hot' } })).toMatchObject({
      param: 'generationConfig.temperature',
      message: expect.stringContaining("'generationConfig.temperature'"),
    })
  })

  test('parses a turn of very many calls in linear time', () => {
    const names = Array.from({ length: 50_000 }, (_, i) => `f${i % 7}`)
    const messages = messagesOf(
      { role: 'model', parts: names.map((name) => ({ functionCall: { name } })) },
      { role: 'user', parts: names.toReversed().map((name) => ({ functionResponse: { name, response: {} } })) },
      { role: 'model', parts: [{ text: 'x', thoughtSignature: `${'='.repeat(200_000)}x` }] },
    )
    expect(messages).toHaveLength(names.length + 2)
  }, 60_000)

  test('throws only request errors, for any JSON', () => {
    const anything = fc.oneof({ weight: 1, arbitrary: fc.jsonValue() }, { weight: 3, arbitrary: hostileBody() })
    fc.assert(
      fc.property(anything, fc.constantFrom(STREAM, COUNT), (body, url) => {
        try {
          parse(body, url)
        } catch (error) {
          expect(error).toBeInstanceOf(RolloutError)
        }
      }),
      { numRuns: runs(300) },
    )
  })
})

describe('routes', () => {
  test.each([
    ['/v1beta/models/m:generateContent', 'generate', 'm', false],
    ['/v1beta/models/m:streamGenerateContent?alt=sse', 'generate', 'm', true],
    ['/v1/models/m-1.5:streamGenerateContent', 'generate', 'm-1.5', true],
    ['/v1beta/models/org/m:generateContent', 'generate', 'org/m', false],
    ['/v1beta/models/org%2Fm:generateContent', 'generate', 'org/m', false],
    ['/v1beta/models/m:latest:generateContent', 'generate', 'm:latest', false],
    ['/v1beta1/publishers/google/models/m:streamGenerateContent', 'generate', 'm', true],
    ['/v1beta1/publishers/org/models/m:generateContent', 'generate', 'org/m', false],
    ['/v1/publishers/google/models/m:generateContent', 'generate', 'm', false],
    ['/v1beta1/projects/p/locations/l/publishers/google/models/m:generateContent', 'generate', 'm', false],
    ['/v1beta/models/m:countTokens', 'count-tokens', 'm', false],
  ])('%s', (url, kind, model, stream) => {
    expect(contextOf(url).route.kind).toBe(kind)
    expect(parse(hello, url)).toMatchObject({ model, stream })
  })

  test('lists and shows models in the shape of Google', () => {
    const card = { name: 'models/m', supportedGenerationMethods: expect.arrayContaining(['generateContent']) }
    expect(contextOf('/v1beta/models', 'GET').route.kind).toBe('list-models')
    expect(googleGenerate.renderModels(['m'], 0)).toMatchObject({ models: [card] })
    expect(contextOf('/v1beta/models/m', 'GET')).toMatchObject({ route: { kind: 'get-model' }, wildcards: ['m'] })
    expect(googleGenerate.renderModel('m', 0)).toMatchObject(card)
    expect(contextOf('/v1/models', 'GET', { 'x-goog-api-key': 'k' }).route.kind).toBe('list-models')
    expect(() => contextOf('/v1/models', 'GET')).toThrow(RolloutError)
  })

  test('recognises requests of Google without a route', () => {
    for (const path of ['/v1beta/files', '/v1beta1/projects/p', '/v1/models/m:embedContent', '/v1/publishers/x']) {
      expect(googleGenerate.recognises(path, {})).toBe(true)
    }
    expect(googleGenerate.recognises('/x', { 'x-goog-api-key': 'k' })).toBe(true)
    for (const path of ['/v1/models/m', '/v1/messages', '/v1/chat/completions']) {
      expect(googleGenerate.recognises(path, {})).toBe(false)
    }
  })
})

describe('toJsonSchema()', () => {
  test('converts only the schema of Google to JSON Schema', () => {
    const schema = {
      type: 'OBJECT',
      properties: {
        type: { type: 'STRING', enum: ['STRING', 'OBJECT'], nullable: true },
        min_items: { type: 'ARRAY', items: { type: 'INTEGER' }, min_items: '2', maxItems: 3 },
        either: { any_of: [{ type: 'NUMBER' }, { type: 'BOOLEAN', default: 'OBJECT' }] },
        open: { type: 'TYPE_UNSPECIFIED', description: 'type: OBJECT' },
      },
      propertyOrdering: ['type'],
      required: ['type'],
    }
    expect(toJsonSchema(schema)).toEqual({
      type: 'object',
      properties: {
        type: { type: ['string', 'null'], enum: ['STRING', 'OBJECT'] },
        min_items: { type: 'array', items: { type: 'integer' }, minItems: 2, maxItems: 3 },
        either: { anyOf: [{ type: 'number' }, { type: 'boolean', default: 'OBJECT' }] },
        open: { description: 'type: OBJECT' },
      },
      required: ['type'],
    })
  })

  test('does not change JSON Schema, including the order of its keys', () => {
    const schema = {
      $schema: 'x',
      type: ['object', 'null'],
      properties: { b: { const: 'OBJECT' }, a: { $ref: '#/$defs/c', items: false } },
      $defs: { c: { type: 'string', minLength: 1 } },
      additionalProperties: false,
    }
    expect(JSON.stringify(toJsonSchema(schema))).toBe(JSON.stringify(schema))
  })
})

describe('googleGenerateFields', () => {
  /** Fields with arbitrary members. */
  const opaque = /^(.*\.(args|response|parametersJsonSchema|responseJsonSchema|googleSearch))[.[].*$/
  const fields = new Set(googleGenerateFields.map(({ field }) => field))

  test.each([
    'contents[].parts[].functionCall.args.agent_name',
    'contents[].parts[].functionCall.args.command',
    'contents[].parts[].functionCall.args.content',
    'contents[].parts[].functionCall.args.file_path',
    'contents[].parts[].functionCall.args.prompt',
    'contents[].parts[].functionCall.args.query',
    'contents[].parts[].functionCall.args.x',
    'contents[].parts[].functionCall.id',
    'contents[].parts[].functionCall.name',
    'contents[].parts[].functionResponse.id',
    'contents[].parts[].functionResponse.name',
    'contents[].parts[].functionResponse.response.error',
    'contents[].parts[].functionResponse.response.output',
    'contents[].parts[].inlineData.data',
    'contents[].parts[].inlineData.mimeType',
    'contents[].parts[].text',
    'contents[].parts[].thoughtSignature',
    'contents[].role',
    'generationConfig.responseJsonSchema.properties',
    'generationConfig.responseJsonSchema.required',
    'generationConfig.responseJsonSchema.type',
    'generationConfig.responseMimeType',
    'generationConfig.temperature',
    'generationConfig.thinkingConfig.includeThoughts',
    'generationConfig.thinkingConfig.thinkingLevel',
    'generationConfig.topK',
    'generationConfig.topP',
    'systemInstruction.parts[].text',
    'systemInstruction.role',
    'tools[].functionDeclarations[].description',
    'tools[].functionDeclarations[].name',
    'tools[].functionDeclarations[].parametersJsonSchema',
    'tools[].googleSearch',
  ])('documents %s', (path) => {
    expect(fields).toContain(opaque.exec(path)?.[1] ?? path)
  })

  test('documents each field once', () => {
    expect(fields.size).toBe(googleGenerateFields.length)
  })
})

// --- answers ----------------------------------------------------------------------------------------------------------

const thinking = { ...hello, generationConfig: { thinkingConfig: { includeThoughts: true } } }

const start: StreamEvent = {
  type: 'answer-start',
  id: 'answer-1',
  model: 'served',
  created: 7,
  promptTokenIds: Int32Array.of(1, 2, 3),
}
const end: StreamEvent = { type: 'answer-end' }
const usage: StreamEvent = { type: 'usage', usage: { promptTokens: 3, completionTokens: 9, cachedTokens: 2 } }

function delta(fields: Omit<ChoiceDelta, 'type' | 'choice'>, choice = 0): StreamEvent {
  return { type: 'choice-delta', choice, ...fields }
}

function streamed(request: TurnRequest, events: readonly StreamEvent[]): string {
  const renderer = googleGenerate.createStreamRenderer(request, contextOf(STREAM))
  return events.map((event) => renderer.render(event)).join('')
}

interface Chunk {
  candidates?: {
    content: { role: string; parts: Part[] }
    finishReason?: string
    index: number
    avgLogprobs?: number
  }[]
  usageMetadata?: Record<string, number>
  modelVersion?: string
  responseId?: string
  error?: { code: number; status: string }
}

interface Part {
  text?: string
  thought?: boolean
  thoughtSignature?: string
  functionCall?: { id?: string; name: string; args: unknown }
}

function chunksOf(text: string): Chunk[] {
  return text
    .split('\n\n')
    .filter((frame) => frame !== '')
    .map((frame) => JSON.parse(frame.replace(/^data: /, '')) as Chunk)
}

function whole(request: TurnRequest, events: readonly StreamEvent[]): Chunk {
  const answer = { response: captured(events), events }
  const wire: unknown = googleGenerate.renderResponse(request, answer, contextOf(WHOLE))
  return JSON.parse(JSON.stringify(wire)) as Chunk
}

function captured(events: readonly StreamEvent[]): TurnResponse {
  const capture = new TurnCapture()
  for (const event of events) capture.add(event)
  const response = capture.toResponse()
  if (response === undefined) throw new Error('no answer')
  return response
}

const lookup = [
  start,
  delta({ reasoning: 'Let me ' }),
  delta({ reasoning: 'see.' }),
  delta({ text: 'I ' }),
  delta({ text: 'look.', ids: Int32Array.of(5, 6) }),
  delta({ toolCalls: [{ index: 0, id: 'c1', name: 'run', arguments: '' }] }),
  delta({ toolCalls: [{ index: 0, arguments: '{"command": ' }] }),
  delta({ toolCalls: [{ index: 0, arguments: '"ls"}' }] }),
  delta({ toolCalls: [{ index: 1, id: 'c2', name: 'read', arguments: '{}' }] }),
  delta({ finishReason: 'tool-calls' }),
  usage,
  end,
]

const signature = expect.stringMatching(/^[A-Za-z0-9+/]+={0,2}$/)

describe('createStreamRenderer()', () => {
  test('renders thoughts and text at once, and complete calls with the finish reason and the counts', () => {
    const chunks = chunksOf(streamed(parse(thinking), lookup))
    expect(chunks.map((chunk) => chunk.candidates?.map(({ content }) => content.parts))).toEqual([
      [[{ text: 'Let me ', thought: true }]],
      [[{ text: 'see.', thought: true }]],
      [[{ text: 'I ', thoughtSignature: signature }]],
      [[{ text: 'look.' }]],
      [
        [
          { functionCall: { id: 'c1', name: 'run', args: { command: 'ls' } }, thoughtSignature: signature },
          { functionCall: { id: 'c2', name: 'read', args: {} }, thoughtSignature: signature },
        ],
      ],
    ])
    const [first] = chunks
    expect(first).toMatchObject({
      modelVersion: 'm',
      responseId: 'answer-1',
      usageMetadata: { promptTokenCount: 3, candidatesTokenCount: 0, totalTokenCount: 3 },
    })
    expect(chunks.map((chunk) => chunk.candidates?.[0]?.finishReason)).toEqual([
      ...Array.from({ length: 4 }, () => undefined),
      'STOP',
    ])
    expect(chunks.at(-1)?.usageMetadata).toEqual({
      promptTokenCount: 3,
      candidatesTokenCount: 9,
      totalTokenCount: 12,
      cachedContentTokenCount: 2,
    })
    expect(chunks[3]?.usageMetadata).toMatchObject({ candidatesTokenCount: 2, totalTokenCount: 5 })
  })

  test('hides thoughts from a harness that did not request them, but restores them from its history', () => {
    const chunks = chunksOf(streamed(parse(hello), lookup))
    const parts = chunks.flatMap((chunk) => chunk.candidates?.[0]?.content.parts ?? [])
    expect(parts.some((part) => part.thought)).toBe(false)
    expect(messagesOf({ role: 'model', parts })).toMatchObject([{ reasoning: 'Let me see.' }])
  })

  test.each([
    ['stop', 'STOP'],
    ['length', 'MAX_TOKENS'],
    ['tool-calls', 'STOP'],
    ['content-filter', 'SAFETY'],
    ['abort', 'OTHER'],
    ['cut', 'OTHER'],
    ['other', 'OTHER'],
  ] as const)('renders the finish reason %s as %s', (finishReason, word) => {
    const events = [start, delta({ text: 'x', finishReason }), end]
    expect(chunksOf(streamed(parse(hello), events)).at(-1)?.candidates).toEqual([
      { content: { parts: [{ text: '' }], role: 'model' }, index: 0, finishReason: word },
    ])
    expect(whole(parse(hello), events).candidates).toEqual([
      { content: { parts: [{ text: 'x' }], role: 'model' }, index: 0, finishReason: word },
    ])
  })

  test('renders an empty text for an empty answer, and restores reasoning without a following part', () => {
    const nothing = [start, delta({ finishReason: 'stop' }), end]
    expect(whole(parse(hello), nothing).candidates?.[0]?.content.parts).toEqual([{ text: '' }])
    const thoughtOnly = [start, delta({ reasoning: 'hm', finishReason: 'length' }), end]
    for (const chunks of [chunksOf(streamed(parse(hello), thoughtOnly)), [whole(parse(hello), thoughtOnly)]]) {
      const contents = chunks.flatMap((chunk) => chunk.candidates ?? []).map(({ content }) => content)
      expect(contents).toEqual([{ role: 'model', parts: [{ text: '', thoughtSignature: signature }] }])
      expect(messagesOf(...contents)).toEqual([{ role: 'assistant', content: [], toolCalls: [], reasoning: 'hm' }])
    }
  })

  test('keeps candidates apart', () => {
    const request = parse({ ...hello, generationConfig: { candidateCount: 2 } })
    const events = [
      start,
      delta({ text: 'b' }, 1),
      delta({ text: 'a', finishReason: 'stop' }, 0),
      delta({ toolCalls: [{ index: 0, id: 'c', name: 'f', arguments: '{}' }] }, 1),
      delta({ finishReason: 'length' }, 1),
      end,
    ]
    const chunks = chunksOf(streamed(request, events))
    expect(chunks.map((chunk) => chunk.candidates?.map(({ index }) => index))).toEqual([[1], [0], [0, 1]])
    expect(chunks.at(-1)?.candidates).toMatchObject([
      { finishReason: 'STOP' },
      { finishReason: 'MAX_TOKENS', content: { parts: [{ functionCall: { id: 'c' } }] } },
    ])
    expect(whole(request, events).candidates).toMatchObject([
      { index: 0, finishReason: 'STOP', content: { parts: [{ text: 'a' }] } },
      { index: 1, finishReason: 'MAX_TOKENS', content: { parts: [{ text: 'b' }, { functionCall: { id: 'c' } }] } },
    ])
  })

  test('renders arguments that are no JSON object as a call that cannot run, and restores them', () => {
    for (const text of ['{"command": "ls', 'ls', '[1]', '"x"', '5', 'null']) {
      const events = [start, delta({ toolCalls: [{ index: 0, id: 'c', name: 'f', arguments: text }] }), end]
      const [chunk] = chunksOf(streamed(parse(hello), events))
      const content = chunk?.candidates?.[0]?.content
      expect(content?.parts).toMatchObject([{ functionCall: { args: { __unparsed_arguments: text } } }])
      expect(messagesOf(content)).toMatchObject([{ toolCalls: [{ id: 'c', name: 'f', arguments: text }] }])
    }
  })

  test('renders an empty text as no arguments', () => {
    const events = [start, delta({ toolCalls: [{ index: 0, id: 'c', name: 'f', arguments: '' }] }), end]
    expect(whole(parse(hello), events).candidates?.[0]?.content.parts[0]?.functionCall?.args).toEqual({})
  })

  test('renders a unique id for every call of an answer', () => {
    const call = (index: number, id?: string): StreamEvent =>
      delta({ toolCalls: [{ index, id, name: 'f', arguments: '{}' }] })
    const events = [start, call(0, 'c'), call(1), call(2, 'c'), call(3, ''), end]
    const parts = chunksOf(streamed(parse(hello), events)).flatMap(
      (chunk) => chunk.candidates?.[0]?.content.parts ?? [],
    )
    expect(parts.map((part) => part.functionCall?.id)).toEqual(['c', 'answer-1-0-1', 'answer-1-0-2', 'answer-1-0-3'])
  })

  test('joins the pieces of interleaved calls, and renders no call before the end', () => {
    const events = [
      start,
      delta({ toolCalls: [{ index: 0, id: 'a', name: 'f', arguments: '{"x"' }] }),
      delta({ toolCalls: [{ index: 1, id: 'b', name: 'g', arguments: '{"y"' }] }),
      delta({
        toolCalls: [
          { index: 0, arguments: ':1}' },
          { index: 1, arguments: ':2}' },
        ],
      }),
      delta({ finishReason: 'tool-calls' }),
      end,
    ]
    expect(streamed(parse(hello), events.slice(0, -1))).toBe('')
    expect(chunksOf(streamed(parse(hello), events)).at(-1)?.candidates?.[0]?.content.parts).toMatchObject([
      { functionCall: { id: 'a', args: { x: 1 } } },
      { functionCall: { id: 'b', args: { y: 2 } } },
    ])
  })

  test('shows token ids and log probabilities only to a harness that requested them', () => {
    const events = [
      start,
      delta({ ids: Int32Array.of(7), logprobs: Float32Array.of(-0.5) }),
      delta({ text: 'x', ids: Int32Array.of(8, 9), logprobs: Float32Array.of(-1.5, Number.NaN) }),
      delta({ finishReason: 'stop' }),
      end,
    ]
    const asked = parse({ ...hello, generationConfig: { responseLogprobs: true } })
    const chosenCandidates = [
      { tokenId: 7, logProbability: -0.5 },
      { tokenId: 8, logProbability: -1.5 },
      { tokenId: 9 },
    ]
    expect(chunksOf(streamed(asked, events))).toMatchObject([
      { candidates: [{ logprobsResult: { chosenCandidates } }] },
      { candidates: [{ avgLogprobs: -1 }] },
    ])
    expect(whole(asked, events)).toMatchObject({
      candidates: [{ logprobsResult: { chosenCandidates }, avgLogprobs: -1 }],
    })
    expect(streamed(parse(hello), events)).not.toMatch(/ogprob|tokenId/)
  })

  test('omits unknown counts', () => {
    const events: StreamEvent[] = [{ type: 'answer-start', id: 'a', model: 'x', created: 0 }, delta({ text: 'x' }), end]
    for (const chunk of chunksOf(streamed(parse(hello), events))) expect(chunk).not.toHaveProperty('usageMetadata')
  })

  test('counts the prompt at the end if the engine reports its ids at the end', () => {
    const events: StreamEvent[] = [
      { type: 'answer-start', id: 'a', model: 'x', created: 0 },
      delta({ text: 'x', finishReason: 'stop' }),
      delta({ ids: Int32Array.of(1, 2) }),
      { type: 'answer-end', promptTokenIds: Int32Array.of(7, 8, 9) },
    ]
    expect(chunksOf(streamed(parse(hello), events)).at(-1)?.usageMetadata).toEqual({
      promptTokenCount: 3,
      candidatesTokenCount: 2,
      totalTokenCount: 5,
    })
  })

  test('keepAlive() is a chunk without content, never a comment', () => {
    const idle = (headers: Record<string, string>): string =>
      googleGenerate.createStreamRenderer(parse(hello), contextOf(STREAM, 'POST', headers)).keepAlive()
    expect(chunksOf(idle({}))).toEqual([
      { candidates: [{ content: { parts: [{ thought: true }], role: 'model' }, index: 0 }], modelVersion: 'm' },
    ])
    expect(chunksOf(idle({ 'user-agent': 'GeminiCLI-tui/0.61.0/m (linux; x64; terminal)' }))).toEqual([
      { modelVersion: 'm' },
    ])
  })

  test('ends a failed stream with an error after which clients of every SDK version retry', () => {
    const failure = new RolloutError('upstream.reset', 'gone').failure
    const body = { error: { code: 502, message: 'gone', status: 'UNAVAILABLE' } }
    const sent = streamed(parse(hello), [start, delta({ text: 'x' }), { type: 'answer-error', failure }])
    const last = googleGenerate.renderStreamError(failure) ?? ''
    expect(sent).not.toContain('gone')
    const events = new SseParser().push(Buffer.from(sent + last))
    expect(events.map(({ data }) => JSON.parse(data) as unknown)).toEqual([expect.anything(), body])
    // SDK versions before 2.0 read only lines that begin with `data`, and throw on the rest.
    const event = /^\s*data: (.*)\n\n/
    let rest = sent + last
    while (event.test(rest)) rest = rest.replace(event, '')
    expect(rest).not.toBe('')
  })
})

describe('a stream without alt=sse', () => {
  const request = parse(thinking, '/v1beta/models/m:streamGenerateContent')

  test('is one JSON array of the same chunks, with white space as keep-alive', () => {
    expect(googleGenerate.streamType(request)).toMatch(/^application\/json/)
    expect(googleGenerate.streamType(parse(hello))).toMatch(/^text\/event-stream/)
    const renderer = googleGenerate.createStreamRenderer(request, contextOf(STREAM))
    const text = lookup.map((event) => renderer.keepAlive() + renderer.render(event)).join('')
    expect(JSON.parse(text)).toEqual(chunksOf(streamed(parse(thinking), lookup)))
  })

  test('is closed after an error', () => {
    const failure = new RolloutError('upstream.reset', 'gone').failure
    const broken = streamed(request, [start, delta({ text: 'x' }), { type: 'answer-error', failure }])
    expect(JSON.parse(broken)).toMatchObject([{ candidates: [{}] }, { error: { code: 502 } }])
    expect(JSON.parse(streamed(request, [{ type: 'answer-error', failure }]))).toMatchObject([{ error: { code: 502 } }])
  })

  test('keeps the framing when the gateway copies the request', () => {
    expect(googleGenerate.streamType({ ...request, messages: [] })).toMatch(/^application\/json/)
  })
})

describe('renderError()', () => {
  test.each([
    ['request.malformed', 400, 'INVALID_ARGUMENT'],
    ['request.unauthorized', 401, 'UNAUTHENTICATED'],
    ['request.unknown-route', 404, 'NOT_FOUND'],
    ['request.wrong-method', 405, 'INVALID_ARGUMENT'],
    ['request.too-large', 413, 'INVALID_ARGUMENT'],
    ['upstream.rate-limited', 429, 'RESOURCE_EXHAUSTED'],
    ['upstream.overloaded', 503, 'UNAVAILABLE'],
    ['upstream.unreachable', 502, 'UNAVAILABLE'],
    ['upstream.timeout', 504, 'DEADLINE_EXCEEDED'],
    ['internal.bug', 500, 'INTERNAL'],
  ] as const)('renders %s as %i %s', (code, status, word) => {
    expect(googleGenerate.renderError(new RolloutError(code, 'why').failure)).toEqual({
      status,
      headers: {},
      body: { error: { code: status, message: 'why', status: word } },
    })
  })

  test('has the retry delay in the field that Gemini CLI reads, below its limit', () => {
    const { failure } = new RolloutError('upstream.rate-limited', 'slow down', { retryAfterSeconds: 900 })
    expect(googleGenerate.renderError(failure)).toMatchObject({
      headers: { 'retry-after': '900' },
      body: { error: { details: [{ '@type': 'type.googleapis.com/google.rpc.RetryInfo', retryDelay: '300s' }] } },
    })
  })

  test('names the field', () => {
    expect(googleGenerate.renderError(refusal({}))).toMatchObject({
      body: { error: { details: [{ fieldViolations: [{ field: 'contents' }] }] } },
    })
  })

  test.each([
    [
      "This model's maximum context length is 40 tokens. However, you requested 1 output tokens and your prompt contains at least 40 input tokens, for a total of at least 41 tokens.",
      'The input token count (40) exceeds the maximum number of tokens allowed (40).',
    ],
    [
      "Input length (50) exceeds model's maximum context length (40).",
      'The input token count (50) exceeds the maximum number of tokens allowed (40).',
    ],
    [
      'The decoder prompt (length 50) is longer than the maximum model length of 40. Make sure that `max_model_len` is no smaller.',
      'The input token count (50) exceeds the maximum number of tokens allowed (40).',
    ],
    [
      "This model's maximum context length is 40 tokens. However, you requested 60 tokens (50 in the messages, 10 in the completion).",
      'The input token count (50) exceeds the maximum number of tokens allowed (40).',
    ],
    ['too long', 'The input token count exceeds the maximum number of tokens allowed.'],
  ])('renders a context overflow with Google’s message: %s', (message, expected) => {
    const { failure } = new RolloutError('request.context-overflow', message)
    expect(googleGenerate.renderError(failure)).toMatchObject({
      status: 400,
      body: { error: { status: 'INVALID_ARGUMENT', message: expected, details: [{ detail: message }] } },
    })
  })
})

// --- what clients make of it ------------------------------------------------------------------------------------------

interface Sampled {
  reasoning: string
  text: string
  calls: ToolCall[]
}

const anyText = fc.oneof(
  fc.string({ unit: anyCodePoint }),
  fc.string(),
  fc.constantFrom('', ' ', '\n\n', 'data: {}\n\n', '🙂'),
)

/** Argument texts of models: with spaces, escapes and numbers that a second printing would change; also invalid JSON. */
const anyArguments = fc.oneof(
  { weight: 3, arbitrary: fc.dictionary(fc.string(), fc.jsonValue()).map((value) => JSON.stringify(value, null, 2)) },
  { weight: 1, arbitrary: fc.constantFrom('{"a": 1.0, "b":"\\u00e9"}', '{}', '{ "big": 12345678901234567890 }') },
  { weight: 1, arbitrary: fc.constantFrom('{"a": ', 'ls -l', '[1, 2]', 'null') },
)

const anySampled: fc.Arbitrary<Sampled> = fc.record({
  reasoning: anyText,
  text: anyText,
  calls: fc
    .array(fc.record({ name: fc.constantFrom('run', 'read_file'), arguments: anyArguments }), { maxLength: 3 })
    .map((calls) => calls.map((call, i) => ({ id: `call-${i}`, ...call }))),
})

/** A possible arrival of the same answer: each field cut in pieces, and consecutive pieces grouped into events. */
function anyCut({ reasoning, text, calls }: Sampled): fc.Arbitrary<StreamEvent[]> {
  return fc.array(fc.nat({ max: 6 }), { minLength: 8, maxLength: 8 }).map((sizes) => {
    let at = 0
    const next = (): number => sizes[at++ % sizes.length] ?? 0
    const cut = (all: string): string[] => {
      const pieces: string[] = []
      for (let from = 0; from < all.length;) {
        const to = from + next() + 1
        pieces.push(all.slice(from, to))
        from = to
      }
      return pieces
    }
    const pieces: Omit<ChoiceDelta, 'type' | 'choice'>[] = [
      ...cut(reasoning).map((piece) => ({ reasoning: piece })),
      ...cut(text).map((piece) => ({ text: piece })),
      ...calls.flatMap(({ id, name, arguments: json }, index) => [
        { toolCalls: [{ index, id, name }] },
        ...cut(json).map((piece) => ({ toolCalls: [{ index, arguments: piece }] })),
      ]),
      { finishReason: 'stop' as const },
    ]
    const events: StreamEvent[] = [start]
    while (pieces.length > 0) {
      const group = pieces.splice(0, next() + 1)
      const join = (key: 'reasoning' | 'text'): string | undefined => group.map((piece) => piece[key] ?? '').join('')
      const toolCalls = group.flatMap((piece) => piece.toolCalls ?? [])
      const finishReason = group.at(-1)?.finishReason
      events.push(delta({ reasoning: join('reasoning'), text: join('text'), toolCalls, finishReason }))
    }
    return [...events, usage, end]
  })
}

const anyAnswer = anySampled.chain((sampled) => fc.tuple(fc.constant(sampled), anyCut(sampled)))

/** The content that a client has after a stream. */
function reduce(chunks: readonly Chunk[]): { thoughts: string; text: string; calls: unknown[]; finishReason?: string } {
  const parts = chunks.flatMap((chunk) => chunk.candidates?.[0]?.content.parts ?? [])
  const textOf = (isThought: boolean): string =>
    parts.map((part) => (Boolean(part.thought) === isThought ? (part.text ?? '') : '')).join('')
  return {
    thoughts: textOf(true),
    text: textOf(false),
    calls: parts.flatMap((part) => part.functionCall ?? []),
    finishReason: chunks.at(-1)?.candidates?.[0]?.finishReason,
  }
}

/** Joins texts to the first of them and drops thoughts, like Gemini CLI. */
function echoOfGeminiCli(chunks: readonly Chunk[]): unknown[] {
  const parts: Part[] = []
  for (const part of chunks.flatMap((chunk) => chunk.candidates?.[0]?.content.parts ?? [])) {
    const last = parts.at(-1)
    if (part.thought) continue
    if (last?.text && part.text !== undefined) last.text += part.text
    else if (part.text !== '' || part.thoughtSignature !== undefined) parts.push({ ...part })
  }
  return [{ role: 'model', parts }]
}

/** Keeps one content for each chunk, like Google's chat helper. */
function echoOfChatHelper(chunks: readonly Chunk[]): unknown[] {
  return chunks.flatMap((chunk) => chunk.candidates?.[0]?.content ?? [])
}

/** Keeps thoughts and signatures but returns no ids, like pi. */
function echoOfPi(chunks: readonly Chunk[]): unknown[] {
  const parts = chunks.flatMap((chunk) => chunk.candidates?.[0]?.content.parts ?? [])
  return [
    {
      role: 'model',
      parts: parts.map(({ functionCall, ...part }) => ({
        ...part,
        ...(functionCall === undefined ? {} : { functionCall: { name: functionCall.name, args: functionCall.args } }),
      })),
    },
  ]
}

describe('any client', () => {
  test('receives the same answer for every cut of its events, with the finish reason in the last chunk', () => {
    fc.assert(
      fc.property(anyAnswer, ([sampled, events]) => {
        const chunks = chunksOf(streamed(parse(thinking), events))
        const inOnePiece = [whole(parse(thinking), events)]
        expect(reduce(chunks)).toEqual(reduce(inOnePiece))
        expect(reduce(chunks)).toMatchObject({ thoughts: sampled.reasoning, text: sampled.text, finishReason: 'STOP' })
        expect(chunks.slice(0, -1).every((chunk) => chunk.candidates?.[0]?.finishReason === undefined)).toBe(true)
        expect(chunks.at(-1)?.usageMetadata).toEqual(inOnePiece[0]?.usageMetadata)
      }),
      { numRuns: runs(100) },
    )
  })

  test.each([
    ['Gemini CLI', echoOfGeminiCli],
    ['the chat helper', echoOfChatHelper],
    ['pi', echoOfPi],
  ])('%s returns what was sampled', (_, echo) => {
    fc.assert(
      fc.property(anyAnswer, fc.boolean(), ([sampled, events], isThinking) => {
        const request = parse(isThinking ? thinking : hello)
        const sent = JSON.stringify(echo(chunksOf(streamed(request, events))))
        const [message] = messagesOf(...(JSON.parse(sent) as unknown[])) as AssistantMessage[]
        const { toolCalls, ...rest } = message ?? { toolCalls: [] }
        expect(rest).toEqual({
          role: 'assistant',
          content: sampled.text === '' ? [] : [{ type: 'text', text: sampled.text }],
          ...(sampled.reasoning === '' ? {} : { reasoning: sampled.reasoning }),
        })
        expect(toolCalls.map(asJson)).toEqual(sampled.calls.map(asJson))
      }),
      { numRuns: runs(70) },
    )
  })

  test('that decodes signatures and prints them in the other alphabet returns them too', () => {
    const parts = chunksOf(streamed(parse(hello), lookup)).flatMap(
      (chunk) => chunk.candidates?.[0]?.content.parts ?? [],
    )
    const printed = parts.map((part) => ({
      ...part,
      thoughtSignature: Buffer.from(part.thoughtSignature ?? '', 'base64').toString('base64url'),
    }))
    expect(messagesOf({ role: 'model', parts: printed })).toMatchObject([{ reasoning: 'Let me see.' }])
  })

  test('receives the same bytes for the same events', () => {
    expect(streamed(parse(thinking), lookup)).toBe(streamed(parse(thinking), lookup))
  })
})

function asJson(call: ToolCall): unknown {
  try {
    return { ...call, arguments: JSON.parse(call.arguments) as unknown }
  } catch {
    return call
  }
}

describe("Google's own SDK", () => {
  /** Serves the rendering of these events, in pieces as a network would cut them. */
  function gateway(events: readonly StreamEvent[] | Failure, options: { cutAt?: number; seen?: unknown[] } = {}) {
    return async (input: unknown, init?: RequestInit): Promise<Response> => {
      const { pathname, search } = new URL(String(input))
      const method = init?.method ?? 'GET'
      const context = contextOf(pathname + search, method)
      if (context.route.kind === 'list-models') return Response.json(googleGenerate.renderModels(['m', 'n'], 0))
      if (context.route.kind === 'get-model') return Response.json(googleGenerate.renderModel('m', 0))
      const text = init?.body as string
      const request = googleGenerate.parseRequest({ text, value: JSON.parse(text) as unknown }, context)
      options.seen?.push(request)
      if (context.route.kind === 'count-tokens') return Response.json(googleGenerate.renderTokenCount(5))
      if (!Array.isArray(events)) {
        const { status, headers, body } = googleGenerate.renderError(events as Failure)
        return Response.json(body, { status, headers })
      }
      const sent = events as readonly StreamEvent[]
      if (!request.stream) {
        return Response.json(
          googleGenerate.renderResponse(request, { response: captured(sent), events: sent }, context),
        )
      }
      const renderer = googleGenerate.createStreamRenderer(request, context)
      const last = sent.at(-1)
      const failed = last?.type === 'answer-error' ? (googleGenerate.renderStreamError(last.failure) ?? '') : ''
      const bytes = Buffer.from(sent.map((event) => renderer.keepAlive() + renderer.render(event)).join('') + failed)
      const size = options.cutAt ?? bytes.length
      const body = new ReadableStream<Uint8Array>({
        start(controller) {
          for (let at = 0; at < bytes.length; at += size) controller.enqueue(bytes.subarray(at, at + size))
          controller.close()
        },
      })
      return new Response(body, { headers: { 'content-type': googleGenerate.streamType(request) } })
    }
  }

  function clientOf(fetch: ReturnType<typeof gateway>): GoogleGenAI {
    return new GoogleGenAI({ apiKey: 'k', httpOptions: { baseUrl: 'http://gateway.test/s/abc', fetch } })
  }

  const asked = {
    model: 'm',
    contents: 'hello',
    config: { systemInstruction: 'be brief', thinkingConfig: { includeThoughts: true } },
  }

  async function collect(stream: AsyncIterable<GenerateContentResponse>): Promise<GenerateContentResponse[]> {
    return Array.fromAsync(stream)
  }

  /** Like `text` of a response, which warns when there are also calls. */
  function textOf(chunks: readonly GenerateContentResponse[]): string {
    const parts = chunks.flatMap((chunk) => chunk.candidates?.[0]?.content?.parts ?? [])
    return parts.map((part) => (part.thought ? '' : (part.text ?? ''))).join('')
  }

  test('reads a stream in any pieces, with keep-alives anywhere', async () => {
    for (const cutAt of [1, 7, 1000, undefined]) {
      const seen: TurnRequest[] = []
      const client = clientOf(gateway(lookup, { cutAt, seen }))
      const chunks = await collect(await client.models.generateContentStream(asked))
      const parts = chunks.flatMap((chunk) => chunk.candidates?.[0]?.content?.parts ?? [])
      expect(parts.flatMap((part) => (part.thought ? [part.text] : [])).join('')).toBe('Let me see.')
      expect(textOf(chunks)).toBe('I look.')
      expect(chunks.flatMap((chunk) => chunk.functionCalls ?? [])).toEqual([
        { id: 'c1', name: 'run', args: { command: 'ls' } },
        { id: 'c2', name: 'read', args: {} },
      ])
      expect(chunks.at(-1)).toMatchObject({
        candidates: [{ finishReason: 'STOP' }],
        usageMetadata: { promptTokenCount: 3, candidatesTokenCount: 9, totalTokenCount: 12 },
        responseId: 'answer-1',
        modelVersion: 'm',
      })
      expect(seen[0]?.messages).toMatchObject([{ role: 'system' }, { role: 'user' }])
    }
  })

  test('reads any answer, streamed and whole', async () => {
    await fc.assert(
      fc.asyncProperty(anyAnswer, fc.integer({ min: 1, max: 500 }), async ([sampled, events], cutAt) => {
        const client = clientOf(gateway(events, { cutAt }))
        const chunks = await collect(await client.models.generateContentStream(asked))
        const answer = await client.models.generateContent(asked)
        const calls = sampled.calls.map(({ id, name }) => ({ id, name }))
        expect(textOf(chunks)).toBe(sampled.text)
        expect(chunks.flatMap((chunk) => chunk.functionCalls ?? [])).toMatchObject(calls)
        expect(answer.functionCalls ?? []).toMatchObject(calls)
        expect(textOf([answer])).toBe(sampled.text)
        expect(reduce([answer as unknown as Chunk])).toEqual(reduce(chunks as unknown as Chunk[]))
      }),
      { numRuns: 40 },
    )
  }, 20_000)

  test('keeps a chat whose next request returns everything', async () => {
    const seen: TurnRequest[] = []
    const chat = clientOf(gateway(lookup, { seen })).chats.create({ model: 'm' })
    await chat.sendMessage({ message: 'hello' })
    await chat.sendMessage({
      message: [
        { functionResponse: { id: 'c1', name: 'run', response: { output: 'a' } } },
        { functionResponse: { id: 'c2', name: 'read', response: { output: 'b' } } },
      ],
    })
    expect(seen[1]?.messages).toEqual([
      { role: 'user', content: [{ type: 'text', text: 'hello' }] },
      {
        role: 'assistant',
        content: [{ type: 'text', text: 'I look.' }],
        reasoning: 'Let me see.',
        toolCalls: [
          { id: 'c1', name: 'run', arguments: '{"command":"ls"}' },
          { id: 'c2', name: 'read', arguments: '{}' },
        ],
      },
      { role: 'tool', toolCallId: 'c1', content: [{ type: 'text', text: 'a' }] },
      { role: 'tool', toolCallId: 'c2', content: [{ type: 'text', text: 'b' }] },
    ])
  })

  test('keeps the history of a streamed chat with any keep-alives', async () => {
    const chat = clientOf(gateway(lookup)).chats.create({ model: 'm' })
    await collect(await chat.sendMessageStream({ message: 'hello' }))
    const [, ...model] = chat.getHistory(true)
    expect(messagesOf(...model)).toEqual([
      {
        role: 'assistant',
        content: [{ type: 'text', text: 'I look.' }],
        reasoning: 'Let me see.',
        toolCalls: [
          { id: 'c1', name: 'run', arguments: '{"command":"ls"}' },
          { id: 'c2', name: 'read', arguments: '{}' },
        ],
      },
    ])
  })

  test('reads the error of a failed stream as an API error', async () => {
    const failure = new RolloutError('upstream.reset', 'gone').failure
    const client = clientOf(gateway([start, delta({ text: 'x' }), { type: 'answer-error', failure }]))
    const stream = await client.models.generateContentStream(asked)
    const error: unknown = await collect(stream).catch((thrown: unknown) => thrown)
    expect(error).toBeInstanceOf(ApiError)
    expect(error).toMatchObject({ status: 502 })
  })

  test('reads errors before the answer with their status', async () => {
    const client = clientOf(
      gateway(new RolloutError('upstream.rate-limited', 'slow', { retryAfterSeconds: 2 }).failure),
    )
    const error: unknown = await client.models.generateContent(asked).catch((thrown: unknown) => thrown)
    expect(error).toMatchObject({ status: 429, message: expect.stringContaining('"retryDelay":"2s"') })
  })

  test('counts tokens, lists models and shows one', async () => {
    const client = clientOf(gateway([]))
    expect(await client.models.countTokens({ model: 'm', contents: 'hello' })).toMatchObject({ totalTokens: 5 })
    const models = await Array.fromAsync(await client.models.list())
    expect(models.map((model) => model.name)).toEqual(['models/m', 'models/n'])
    expect(await client.models.get({ model: 'm' })).toMatchObject({ name: 'models/m' })
  })

  test('reaches the gateway by the paths of Vertex', async () => {
    const seen: TurnRequest[] = []
    const httpOptions = { baseUrl: 'http://gateway.test', fetch: gateway(lookup, { seen }) }
    const client = new GoogleGenAI({ vertexai: true, apiKey: 'k', httpOptions })
    await collect(await client.models.generateContentStream({ ...asked, model: 'gemini-x' }))
    await client.models.generateContent({ ...asked, model: 'org/name' })
    expect(seen.map((request) => request.model)).toEqual(['gemini-x', 'org/name'])
  })
})

// --- helpers ----------------------------------------------------------------------------------------------------------

/** Every key of the wire in snake_case, except in fields with arbitrary members. */
function toSnakeCase(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(toSnakeCase)
  if (typeof value !== 'object' || value === null) return value
  return Object.fromEntries(
    Object.entries(value).map(([key, child]) => [
      key.replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`),
      ['args', 'response', 'parametersJsonSchema', 'responseJsonSchema'].includes(key) ? child : toSnakeCase(child),
    ]),
  )
}

/** Bodies of about the valid form, with arbitrary values in the fields that are read. */
function hostileBody(): fc.Arbitrary<unknown> {
  const any = fc.jsonValue({ maxDepth: 3 })
  const maybe = (arbitrary: fc.Arbitrary<unknown>): fc.Arbitrary<unknown> =>
    fc.oneof({ weight: 4, arbitrary }, { weight: 1, arbitrary: any })
  const text = fc.oneof(fc.string(), fc.constantFrom('__proto__', 'user', 'model', 'f', 'image/png'))
  const part = fc.record(
    {
      text: maybe(text),
      thought: maybe(fc.boolean()),
      thoughtSignature: maybe(text),
      inlineData: maybe(fc.record({ mimeType: maybe(text), data: maybe(text) }, { requiredKeys: [] })),
      file_data: maybe(fc.record({ file_uri: maybe(text) }, { requiredKeys: [] })),
      functionCall: maybe(fc.record({ name: maybe(text), args: any, id: maybe(text) }, { requiredKeys: ['name'] })),
      functionResponse: maybe(fc.record({ name: maybe(text), response: any, parts: any }, { requiredKeys: [] })),
    },
    { requiredKeys: [] },
  )
  const content = fc.record(
    { role: maybe(fc.constantFrom('user', 'model', 'system', 'function')), parts: maybe(fc.array(maybe(part))) },
    { requiredKeys: [] },
  )
  return fc.record(
    {
      contents: maybe(fc.array(maybe(content))),
      systemInstruction: maybe(content),
      tools: maybe(fc.array(maybe(fc.record({ functionDeclarations: maybe(fc.array(maybe(declaration(any)))) })))),
      toolConfig: maybe(fc.record({ functionCallingConfig: maybe(fc.record({ mode: maybe(text) })) })),
      generationConfig: maybe(fc.record({ responseSchema: any, temperature: maybe(fc.double()), thinkingConfig: any })),
      generateContentRequest: any,
    },
    { requiredKeys: ['contents'] },
  )
}

function declaration(any: fc.Arbitrary<unknown>): fc.Arbitrary<unknown> {
  return fc.record({ name: fc.string(), parameters: any, parametersJsonSchema: any }, { requiredKeys: ['name'] })
}

test('parseRequest() parses a recorded request without its session', () => {
  const route = contextOf(STREAM).route
  const request = googleGenerate.parseRequest({ text: '', value: thinking }, bareContext(route))
  expect(streamed(request, lookup)).toContain('thoughtSignature')
})
