import fc from 'fast-check'
import OpenAI from 'openai'
import { describe, expect, test } from 'vitest'
import { anyCodePoint } from '../../../test/support/any-code-point.ts'
import { RolloutError, type Failure, type FailureCode } from '../../model/failure.ts'
import type { AssistantMessage, Message, ToolCall } from '../../model/message.ts'
import type { DeltaEvent, WireEvent } from '../wire-event.ts'
import type { FinishReason, TurnRequest } from '../../model/turn.ts'
import { TurnCapture } from '../capture/capture-turn.ts'
import { AnswerHistory } from '../sessions/answer-history.ts'
import { createTextSealer } from '../sessions/text-sealer.ts'
import { bareContext, type RequestContext, type Route } from './dialect.ts'
import { openaiResponses } from './openai-responses.ts'
import { openaiResponsesFields } from './openai-responses-fields.ts'
import { runs } from '../../../test/support/runs.ts'

const route = (path: string): Route => openaiResponses.routes.find((candidate) => candidate.path === path) as Route
const sealer = createTextSealer('session key')

function contextOf(fields: Partial<RequestContext> = {}): RequestContext {
  return { ...bareContext(route('/v1/responses')), sealer, ...fields }
}

function parse(value: unknown, context = contextOf()): TurnRequest {
  return openaiResponses.parseRequest({ text: JSON.stringify(value), value }, context)
}

function refusal(value: unknown, context = contextOf()): Failure {
  try {
    parse(value, context)
  } catch (error) {
    if (error instanceof RolloutError) return error.failure
    throw error
  }
  throw new Error('was not refused')
}

const hello = { model: 'm', input: 'hello' }
const user = (text: string): unknown => ({ role: 'user', content: [{ type: 'input_text', text }] })
const messagesOf = (...input: unknown[]): Message[] => parse({ model: 'm', input }).messages
const wordsOf = (list: string): string[] => list.trim().split(/\s+/)
const text = (content: string) => [{ type: 'text', text: content }]

// --- requests ---------------------------------------------------------------------------------------------------------

describe('parseRequest()', () => {
  test('parses a text as a user message', () => {
    const request = parse({ ...hello, instructions: 'be brief' })
    expect(request.messages).toEqual([
      { role: 'system', content: text('be brief') },
      { role: 'user', content: text('hello') },
    ])
    expect(request).toMatchObject({
      dialect: 'openai-responses',
      model: 'm',
      stream: false,
      streamUsage: true,
      logprobs: false,
      sampling: { n: 1 },
      wire: { api: 'openai-responses', body: hello },
    })
    expect(request.reasoning).toBeUndefined()
  })

  test('joins the items of one turn to one message, in any order', () => {
    const call = (id: string) => ({ type: 'function_call', call_id: id, name: 'run', arguments: '{"a": 1.0}' })
    const result = (id: string) => ({ type: 'function_call_output', call_id: id, output: `did ${id}` })
    const messages = messagesOf(
      { type: 'message', role: 'developer', content: [{ type: 'input_text', text: 'rules' }], id: 'msg_01-aa' },
      user('go'),
      { type: 'reasoning', summary: [], content: [{ type: 'reasoning_text', text: 'hm' }] },
      { type: 'message', role: 'assistant', content: [{ type: 'output_text', text: 'I will. ', annotations: [] }] },
      call('c1'),
      { role: 'assistant', content: 'Now.' },
      call('c2'),
      result('c1'),
      result('c2'),
      { role: 'system', content: 'late reminder' },
      call('c3'),
      result('c3'),
    )
    const toolCall = (id: string): ToolCall => ({ id, name: 'run', arguments: '{"a": 1.0}' })
    expect(messages).toEqual([
      { role: 'developer', content: text('rules') },
      { role: 'user', content: text('go') },
      {
        role: 'assistant',
        reasoning: 'hm',
        content: text('I will. Now.'),
        toolCalls: [toolCall('c1'), toolCall('c2')],
      },
      { role: 'tool', toolCallId: 'c1', content: text('did c1') },
      { role: 'tool', toolCallId: 'c2', content: text('did c2') },
      { role: 'system', content: text('late reminder') },
      { role: 'assistant', content: [], toolCalls: [toolCall('c3')] },
      { role: 'tool', toolCallId: 'c3', content: text('did c3') },
    ])
  })

  test('separates and joins answers by the ids of their items', () => {
    const call = (answer: string, index: number) => ({
      type: 'function_call',
      id: `fc_${answer}_${index}`,
      call_id: `${answer}${index}`,
      name: 'run',
      arguments: '{}',
    })
    const result = (id: string) => ({ type: 'function_call_output', call_id: id, output: '' })
    const messages = messagesOf(
      { id: 'msg_chat-1_0', role: 'assistant', content: 'one' },
      { id: 'msg_chat-2_0', role: 'assistant', content: 'two' },
      call('chat-3', 0),
      result('chat-30'),
      call('chat-3', 1),
      result('chat-31'),
      call('chat-4', 0),
    )
    expect(messages.map((message) => message.role)).toEqual([
      'assistant',
      'assistant',
      'assistant',
      'tool',
      'tool',
      'assistant',
    ])
    expect(messages[2]).toMatchObject({ toolCalls: [{ id: 'chat-30' }, { id: 'chat-31' }] })
  })

  test('drops the reasoning of an aborted answer', () => {
    const thought = (id: string, thinking: string) => ({
      type: 'reasoning',
      id: `rs_${id}_0`,
      summary: [],
      content: [{ type: 'reasoning_text', text: thinking }],
    })
    const go = user('go')
    expect(messagesOf(go, thought('chat-1', 'lost'))).toHaveLength(1)
    const retried = [go, thought('chat-1', 'lost'), thought('chat-2', 'hm'), { role: 'assistant', content: 'done' }]
    expect(messagesOf(...retried)).toEqual([
      { role: 'user', content: text('go') },
      { role: 'assistant', reasoning: 'hm', content: text('done'), toolCalls: [] },
    ])
    expect(messagesOf(go, thought('chat-1', 'all there was'), user('and?'))).toHaveLength(3)
  })

  test('reads reasoning from its text, else its sealed text, else its summary', () => {
    const reasoningOf = (item: object): unknown => {
      const [message] = messagesOf({ type: 'reasoning', ...item }, { role: 'assistant', content: 'x' })
      return (message as AssistantMessage).reasoning
    }
    const summary = [{ type: 'summary_text', text: 'short' }]
    const sealed = sealer.seal('as sampled')
    expect(reasoningOf({ content: [{ type: 'reasoning_text', text: 'raw' }], encrypted_content: sealed })).toBe('raw')
    expect(reasoningOf({ content: null, encrypted_content: sealed, summary })).toBe('as sampled')
    expect(reasoningOf({ encrypted_content: 'gAAAA foreign', summary })).toBe('short')
    expect(reasoningOf({ encrypted_content: 'gAAAA foreign', summary: [] })).toBeUndefined()
    expect(reasoningOf({})).toBeUndefined()
  })

  test('parses images, also in tool results, and keeps unknown parts', () => {
    const file = { type: 'input_file', filename: 'a.pdf', file_data: 'data:application/pdf;base64,AA' }
    const image = { type: 'input_image', image_url: 'data:image/png;base64,AA', detail: 'high' }
    expect(
      messagesOf(
        { role: 'user', content: [image, file, { type: 'input_image', file_id: 'file-1' }, { type: 'odd', text: 5 }] },
        { type: 'function_call_output', call_id: 'c', output: [{ type: 'input_text', text: 'see' }, image] },
        { role: 'assistant', content: [{ type: 'refusal', refusal: 'no' }] },
      ),
    ).toEqual([
      {
        role: 'user',
        content: [
          { type: 'image', url: image.image_url, detail: 'high' },
          { type: 'other', wire: file },
          { type: 'other', wire: { type: 'input_image', file_id: 'file-1' } },
          { type: 'other', wire: { type: 'odd', text: 5 } },
        ],
      },
      {
        role: 'tool',
        toolCallId: 'c',
        content: [
          { type: 'text', text: 'see' },
          { type: 'image', url: image.image_url, detail: 'high' },
        ],
      },
      { role: 'assistant', content: text('no'), toolCalls: [] },
    ])
  })

  test('parses every kind of call and its result', () => {
    const messages = messagesOf(
      { type: 'custom_tool_call', call_id: 'c1', name: 'apply', input: '*** Begin\n"x"' },
      {
        type: 'local_shell_call',
        id: 'lsh_1',
        call_id: 'c2',
        status: 'completed',
        action: { type: 'exec', command: ['ls', '-a'], env: {}, timeout_ms: null },
      },
      {
        type: 'shell_call',
        call_id: 'c3',
        action: { commands: ['pwd'], timeout_ms: 5, max_output_length: null },
      },
      { type: 'apply_patch_call', call_id: 'c4', operation: { type: 'delete_file', path: 'a' } },
      { type: 'tool_search_call', call_id: 'c5', execution: 'client', arguments: { query: 'q' } },
      { type: 'function_call', call_id: 'c6', name: 'wait', namespace: 'agents', arguments: 'not json' },
      { type: 'web_search_call', id: 'ws_1', status: 'completed' },
      { type: 'custom_tool_call_output', call_id: 'c1', output: 'patched' },
      { type: 'local_shell_call_output', id: 'lsh_1', output: 'listed' },
      { type: 'shell_call_output', call_id: 'c3', output: [{ stdout: '/', stderr: '', outcome: { type: 'timeout' } }] },
      { type: 'apply_patch_call_output', call_id: 'c4', status: 'failed', output: 'no such file' },
      {
        type: 'tool_search_output',
        call_id: 'c5',
        tools: [{ type: 'namespace', name: 'agents', tools: [{ type: 'function', name: 'spawn' }] }],
      },
      { type: 'function_call_output', call_id: 'c6', output: '' },
    )
    expect(messages).toEqual([
      {
        role: 'assistant',
        content: [],
        toolCalls: [
          { id: 'c1', name: 'apply', arguments: '{"input":"*** Begin\\n\\"x\\""}' },
          { id: 'c2', name: 'local_shell', arguments: '{"command":["ls","-a"]}' },
          { id: 'c3', name: 'shell', arguments: '{"commands":["pwd"],"timeout_ms":5}' },
          { id: 'c4', name: 'apply_patch', arguments: '{"type":"delete_file","path":"a"}' },
          { id: 'c5', name: 'tool_search', arguments: '{"query":"q"}' },
          { id: 'c6', name: 'agents__wait', arguments: 'not json' },
        ],
      },
      { role: 'tool', toolCallId: 'c1', content: text('patched') },
      { role: 'tool', toolCallId: 'c2', content: text('listed') },
      {
        role: 'tool',
        toolCallId: 'c3',
        content: text('[{"stdout":"/","stderr":"","outcome":{"type":"timeout"}}]'),
      },
      { role: 'tool', toolCallId: 'c4', content: text('no such file'), isError: true },
      { role: 'tool', toolCallId: 'c5', content: text('Tools that can be called now: agents__spawn') },
      { role: 'tool', toolCallId: 'c6', content: [] },
    ])
  })

  test('parses the settings of the API', () => {
    const schema = { type: 'object' }
    expect(
      parse({
        ...hello,
        stream: true,
        max_output_tokens: 9,
        temperature: 0.5,
        top_p: 0.9,
        parallel_tool_calls: false,
        reasoning: { effort: 'high', summary: 'auto' },
        text: { format: { type: 'json_schema', name: 'answer', schema, strict: true }, verbosity: 'low' },
        include: ['reasoning.encrypted_content', 'message.output_text.logprobs'],
        store: false,
        prompt_cache_key: 'k',
        client_metadata: { a: 1 },
      }),
    ).toMatchObject({
      stream: true,
      parallelToolCalls: false,
      reasoning: { enabled: true, effort: 'high' },
      responseFormat: { type: 'json-schema', name: 'answer', schema, strict: true },
      logprobs: true,
      sampling: { maxTokens: 9, temperature: 0.5, topP: 0.9 },
    })
    expect(parse({ ...hello, reasoning: { effort: 'none' } }).reasoning).toEqual({ enabled: false, effort: 'none' })
    expect(parse({ ...hello, reasoning: { summary: 'auto' } }).reasoning).toBeUndefined()
    expect(parse({ ...hello, text: { format: { type: 'json_object' } } }).responseFormat).toEqual({
      type: 'json-object',
    })
    const update = { type: 'configuration_update', reasoning: { effort: 'low' }, text: { format: { type: 'text' } } }
    expect(parse({ ...hello, reasoning: { effort: 'high' }, input: [user('x'), update] })).toMatchObject({
      reasoning: { effort: 'low' },
      responseFormat: { type: 'text' },
    })
  })

  test('adds the conversation of the previous response before the input', () => {
    const history: Message[] = [
      { role: 'system', content: [{ type: 'text', text: 'old rules' }] },
      { role: 'user', content: [{ type: 'text', text: 'one' }] },
      { role: 'assistant', content: [], toolCalls: [{ id: 'c', name: 'f', arguments: '{}' }] },
    ]
    const context = contextOf({ recall: (id) => (id === 'chat-1' ? history : undefined) })
    const input = [{ type: 'function_call_output', call_id: 'c', output: 'two' }]
    const result = { role: 'tool', toolCallId: 'c', content: text('two') }
    const continued = { model: 'm', previous_response_id: 'resp_chat-1', input }
    expect(parse(continued, context).messages).toEqual([...history, result])
    expect(parse({ ...continued, instructions: 'new rules' }, context).messages).toEqual([
      { role: 'system', content: text('new rules') },
      ...history.slice(1),
      result,
    ])
    expect(history).toHaveLength(3)
    const lost = refusal({ ...continued, previous_response_id: 'resp_other' }, context)
    expect(openaiResponses.renderError(lost)).toMatchObject({
      status: 400,
      body: { error: { code: 'previous_response_not_found', param: 'previous_response_id' } },
    })
  })

  test('finds an answer again that is only referred to', () => {
    const answer: AssistantMessage = {
      role: 'assistant',
      reasoning: 'hm',
      content: [{ type: 'text', text: 'hi' }],
      toolCalls: [{ id: 'c', name: 'f', arguments: '{}' }],
    }
    const context = contextOf({ recall: (id) => (id === 'chat-1' ? [answer] : undefined) })
    const input = [
      user('go'),
      { type: 'item_reference', id: 'rs_chat-1_0' },
      { id: 'msg_chat-1_1' },
      { type: 'item_reference', id: 'fc_chat-1_2' },
      { type: 'function_call_output', call_id: 'c', output: 'ok' },
    ]
    expect(parse({ model: 'm', input }, context).messages).toEqual([
      { role: 'user', content: text('go') },
      answer,
      { role: 'tool', toolCallId: 'c', content: text('ok') },
    ])
    expect(refusal({ model: 'm', input: [{ type: 'item_reference', id: 'rs_1' }] }, context)).toMatchObject({
      status: 404,
      param: 'input[0].id',
    })
  })

  test('names the invalid field', () => {
    const paramOf = (body: object): string | undefined => refusal({ ...hello, ...body }).param
    expect(paramOf({ model: 5 })).toBe('model')
    expect(paramOf({ model: null })).toBe('model')
    expect(paramOf({ input: 5 })).toBe('input')
    expect(paramOf({ input: [] })).toBe('input')
    expect(paramOf({ input: null, instructions: 'be brief' })).toBe('input')
    expect(paramOf({ temperature: 'hot' })).toBe('temperature')
    expect(paramOf({ input: [user('x'), { role: 'nobody', content: 'x' }] })).toBe('input[1].role')
    expect(paramOf({ input: [{ role: 'user', content: [{ type: 'input_text', text: 5 }] }] })).toBe(
      'input[0].content[0].text',
    )
    expect(paramOf({ input: [{ type: 'function_call', call_id: 'c', name: 'f', arguments: {} }] })).toBe(
      'input[0].arguments',
    )
    expect(paramOf({ tools: [{ type: 'function' }] })).toBe('tools[0].name')
    expect(paramOf({ tools: [{ type: 'namespace', name: 'n', tools: [{ type: 'custom', name: 5 }] }] })).toBe(
      'tools[0].tools[0].name',
    )
    expect(paramOf({ input: [{ type: 'additional_tools', tools: [{ type: 'function', name: 5 }] }] })).toBe(
      'input[0].tools[0].name',
    )
    expect(paramOf({ background: true })).toBe('background')
    expect(paramOf({ conversation: 'conv_1' })).toBe('conversation')
    expect(paramOf({ prompt: { id: 'pmpt_1' } })).toBe('prompt')
    expect(refusal([]).message).toBe('The request body must be a JSON object.')
  })

  test('accepts unknown fields', () => {
    const request = parse({
      ...hello,
      background: false,
      input: [user('x'), { type: 'hologram', role: 5, content: 7 }, { type: 'constructor' }],
      tools: [{ type: 'teleport', name: 9 }, { type: 'toString' }],
      tool_choice: { type: 'web_search_preview' },
      new_setting: { deep: [1] },
    })
    expect(request.messages).toHaveLength(1)
    expect(request.tools).toEqual([])
    expect(request.wire.body).toHaveProperty('new_setting')
  })

  test('throws only request errors, for any JSON', () => {
    const itemTypes = wordsOf(`
      message reasoning function_call function_call_output custom_tool_call local_shell_call shell_call
      shell_call_output apply_patch_call apply_patch_call_output tool_search_call tool_search_output
      additional_tools compaction compaction_trigger configuration_update item_reference
      local_shell_call_output agent_message
    `)
    const names = fc.constantFrom(
      ...wordsOf(`
      id role content call_id name namespace arguments input action operation output tools summary
      encrypted_content status reasoning text
    `),
    )
    // Small values: generating large ones takes a hundred times as long as parsing them.
    const json = fc.jsonValue({ maxDepth: 1 })
    const few = { maxLength: 4 }
    const part = fc.oneof(
      fc.record({ type: fc.constantFrom('input_text', 'input_image', 'refusal', 'x'), text: json }),
      json,
    )
    const value = fc.oneof(json, fc.string(), fc.array(part, few), fc.constantFrom('assistant', 'user'))
    const item = fc
      .tuple(fc.constantFrom(...itemTypes), fc.dictionary(names, value, { maxKeys: 6 }))
      .map(([type, fields]) => ({ ...fields, type }))
    const tool = fc
      .tuple(
        fc.constantFrom('function', 'custom', 'namespace', 'shell', 'tool_search'),
        fc.dictionary(names, value, { maxKeys: 6 }),
      )
      .map(([type, fields]) => ({ name: 'f', tools: [], ...fields, type }))
    const anything = fc.oneof(json, fc.array(item, few), fc.array(tool, few))
    const fields = fc.constantFrom(
      ...wordsOf(`
      input tools tool_choice text reasoning include previous_response_id instructions model stream metadata
      top_logprobs
    `),
    )
    const parsed = { count: 0 }
    fc.assert(
      fc.property(fc.dictionary(fields, anything), fc.array(item, few), fc.jsonValue(), (body, input, other) => {
        for (const candidate of [other, body, { ...hello, ...body }, { model: 'm', input }]) {
          try {
            const request = parse(candidate)
            parsed.count += 1
            openaiResponses.createStreamRenderer(request, contextOf()).render(start)
          } catch (error) {
            expect(error).toBeInstanceOf(RolloutError)
          }
        }
      }),
      { numRuns: runs(300) },
    )
    expect(parsed.count).toBeGreaterThan(100)
  })
})

describe('tools', () => {
  const patch = { type: 'custom', name: 'patch', description: 'Edits.', format: { type: 'grammar' } }
  const spawn = { type: 'function', name: 'spawn', description: 'Starts one.', parameters: { type: 'object' } }

  test('become functions, except for hosted tools', () => {
    const grammar = { type: 'grammar', syntax: 'lark', definition: 'start: "a"' }
    const { tools } = parse({
      ...hello,
      tools: [
        { type: 'function', name: 'run', description: 'Runs.', strict: false, parameters: { type: 'object' } },
        { ...patch, format: grammar },
        { type: 'namespace', name: 'agents', description: 'Helpers.', tools: [spawn, { ...patch, name: 'note' }] },
        { type: 'namespace', name: 'mcp__disk__', tools: [{ ...spawn, parameters: null }] },
        { type: 'local_shell' },
        { type: 'shell', environment: { type: 'local' } },
        { type: 'apply_patch' },
        { type: 'tool_search', execution: 'client', description: 'Finds.', parameters: { type: 'object' } },
        { type: 'web_search', external_web_access: true },
        { type: 'image_generation' },
        { type: 'shell', environment: { type: 'container_auto' } },
      ],
    })
    expect(tools.map(({ name, description }) => [name, description?.slice(0, 24)])).toEqual([
      ['run', 'Runs.'],
      ['patch', 'Edits.\n\nThe input must m'],
      ['agents__spawn', 'Helpers.\n\nStarts one.'],
      ['agents__note', 'Edits.'],
      ['mcp__disk__spawn', 'Starts one.'],
      ['local_shell', 'Runs one program on this'],
      ['shell', 'Runs shell commands on t'],
      ['apply_patch', 'Creates, changes or dele'],
      ['tool_search', 'Finds.'],
    ])
    expect(tools[0]).toEqual({ name: 'run', description: 'Runs.', strict: false, parameters: { type: 'object' } })
    expect(tools[1]).toMatchObject({
      description: 'Edits.\n\nThe input must match this lark grammar:\nstart: "a"',
      parameters: { properties: { input: { type: 'string' } }, required: ['input'] },
    })
    expect(tools[4]?.parameters).toBeUndefined()
  })

  test('get unique names when they share a name', () => {
    const named = (type: string) => ({ type, name: 'agents__spawn' })
    const space = { type: 'namespace', name: 'agents', tools: [spawn] }
    const request = parse({
      ...hello,
      tools: [named('function'), named('custom'), space, named('function')],
      tool_choice: { type: 'function', name: 'spawn', namespace: 'agents' },
      input: [
        { type: 'function_call', call_id: 'a', name: 'agents__spawn', arguments: '{}' },
        { type: 'custom_tool_call', call_id: 'b', name: 'agents__spawn', input: '' },
        { type: 'function_call', call_id: 'c', name: 'spawn', namespace: 'agents', arguments: '{}' },
      ],
    })
    const names = ['agents__spawn', 'agents__spawn_2', 'agents__spawn_3']
    expect(request.tools.map(({ name }) => name)).toEqual(names)
    expect((request.messages[0] as AssistantMessage).toolCalls.map(({ name }) => name)).toEqual(names)
    expect(request.toolChoice).toEqual({ name: 'agents__spawn_3' })
    const items = wholeOf(
      request,
      names.map((name, index) => call(index, name, '{"input":"x"}')),
    )
    expect(items).toMatchObject([
      { type: 'function_call', name: 'agents__spawn' },
      { type: 'custom_tool_call', name: 'agents__spawn', input: 'x' },
      { type: 'function_call', name: 'spawn', namespace: 'agents' },
    ])
  })

  test('in the input become available when they are found', () => {
    const search = { type: 'tool_search', execution: 'client', parameters: {} }
    const deferred = { ...spawn, defer_loading: true }
    const names = (body: object): string[] => parse({ ...hello, ...body }).tools.map(({ name }) => name)
    expect(names({ input: [{ type: 'additional_tools', role: 'developer', tools: [spawn] }, user('x')] })).toEqual([
      'spawn',
    ])
    expect(names({ tools: [search, deferred] })).toEqual(['tool_search'])
    expect(
      names({
        tools: [search, deferred],
        input: [user('x'), { type: 'tool_search_output', call_id: 'c', tools: [deferred] }],
      }),
    ).toEqual(['tool_search', 'spawn'])
    expect(names({ tools: [{ type: 'tool_search' }, deferred] })).toEqual(['spawn'])
  })

  test('are chosen by tool_choice', () => {
    const tools = [spawn, patch, { type: 'shell' }, { type: 'web_search' }]
    const chosen = (tool_choice: unknown): unknown => {
      const request = parse({ ...hello, tools, tool_choice })
      return [request.toolChoice, request.tools.map(({ name }) => name)]
    }
    const all = ['spawn', 'patch', 'shell']
    expect(chosen('auto')).toEqual(['auto', all])
    expect(chosen('required')).toEqual(['required', all])
    expect(chosen('none')).toEqual(['none', all])
    expect(chosen({ type: 'function', name: 'spawn' })).toEqual([{ name: 'spawn' }, all])
    expect(chosen({ type: 'custom', name: 'patch' })).toEqual([{ name: 'patch' }, all])
    expect(chosen({ type: 'shell' })).toEqual([{ name: 'shell' }, all])
    expect(chosen({ type: 'web_search_preview' })).toEqual([undefined, all])
    const allowed = [{ type: 'custom', name: 'patch' }, { type: 'web_search' }]
    expect(chosen({ type: 'allowed_tools', mode: 'required', tools: allowed })).toEqual(['required', ['patch']])
    expect(parse({ ...hello, tools: [{ type: 'web_search' }], tool_choice: 'required' }).toolChoice).toBeUndefined()
    expect(refusal({ ...hello, tools, tool_choice: { type: 'function', name: 'other' } })).toMatchObject({
      param: 'tool_choice',
    })
  })
})

// --- answers ----------------------------------------------------------------------------------------------------------

const start: WireEvent = {
  type: 'answer-start',
  id: 'chat-1',
  model: 'served',
  created: 7,
  promptTokenIds: Int32Array.of(1, 2, 3),
}
const usage: WireEvent = {
  type: 'usage',
  usage: { promptTokens: 3, completionTokens: 5, cachedTokens: 2 },
  wire: { completion_tokens_details: { reasoning_tokens: 1 } },
}
const end: WireEvent = { type: 'answer-end' }

const delta = (fields: Partial<DeltaEvent>): WireEvent => ({ type: 'choice-delta', choice: 0, ...fields })
const finish = (finishReason: FinishReason): WireEvent => delta({ finishReason })
const call = (index: number, name: string, args: string): WireEvent =>
  delta({ toolCalls: [{ index, id: `call-${index}`, name, arguments: args }] })

type Wire = Record<string, unknown>

function streamOf(request: TurnRequest, events: readonly WireEvent[], context = contextOf()): string {
  const renderer = openaiResponses.createStreamRenderer(request, context)
  return events.map((event) => renderer.render(event)).join('')
}

function framesOf(stream: string): Wire[] {
  return stream
    .split('\n\n')
    .filter((frame) => frame !== '')
    .map((frame) => {
      const [, event, data] = /^event: (.+)\ndata: (.+)$/.exec(frame) ?? []
      const value = JSON.parse(data ?? '') as Wire
      expect(value['type']).toBe(event)
      return value
    })
}

function responseOf(request: TurnRequest, events: readonly WireEvent[], context = contextOf()): Wire {
  const capture = new TurnCapture()
  for (const event of events) capture.add(event, undefined)
  const response = capture.toResponse()
  if (response === undefined) throw new Error('no answer')
  return openaiResponses.renderResponse(request, { response, events }, context) as Wire
}

function wholeOf(request: TurnRequest, deltas: readonly WireEvent[], reason: FinishReason = 'stop'): Wire[] {
  return responseOf(request, [start, ...deltas, finish(reason), usage, end])['output'] as Wire[]
}

describe('createStreamRenderer()', () => {
  test('renders the events of each item, one item after the other', () => {
    const request = parse({ ...hello, stream: true })
    const events = [
      start,
      delta({ reasoning: 'h' }),
      delta({ reasoning: 'm' }),
      delta({ text: 'hel' }),
      delta({ text: 'lo' }),
      delta({ toolCalls: [{ index: 0, id: 'c1', name: 'f' }] }),
      delta({ toolCalls: [{ index: 0, arguments: '{"a"' }] }),
      delta({ toolCalls: [{ index: 0, arguments: ': 1.0}' }], finishReason: 'tool-calls' }),
      usage,
      end,
    ]
    const frames = framesOf(streamOf(request, events))
    expect(frames.map((frame) => frame['sequence_number'])).toEqual(frames.map((_, i) => i))
    const item = (frame: Wire): Wire => (frame['item'] ?? {}) as Wire
    const told = frames.map((frame) => [
      String(frame['type']).replace('response.', ''),
      frame['item_id'] ?? item(frame)['id'],
      frame['delta'] ?? frame['text'] ?? frame['arguments'] ?? item(frame)['status'],
    ])
    const [rs, msg, fc1] = ['rs_chat-1_0', 'msg_chat-1_1', 'fc_chat-1_2']
    expect(told).toEqual([
      ['created', undefined, undefined],
      ['in_progress', undefined, undefined],
      ['output_item.added', rs, undefined],
      ['content_part.added', rs, undefined],
      ['reasoning_text.delta', rs, 'h'],
      ['reasoning_text.delta', rs, 'm'],
      ['reasoning_text.done', rs, 'hm'],
      ['content_part.done', rs, undefined],
      ['output_item.done', rs, undefined],
      ['output_item.added', msg, 'in_progress'],
      ['content_part.added', msg, undefined],
      ['output_text.delta', msg, 'hel'],
      ['output_text.delta', msg, 'lo'],
      ['output_text.done', msg, 'hello'],
      ['content_part.done', msg, undefined],
      ['output_item.done', msg, 'completed'],
      ['output_item.added', fc1, 'in_progress'],
      ['function_call_arguments.delta', fc1, '{"a"'],
      ['function_call_arguments.delta', fc1, ': 1.0}'],
      ['function_call_arguments.done', fc1, '{"a": 1.0}'],
      ['output_item.done', fc1, 'completed'],
      ['completed', undefined, undefined],
    ])
    const done = frames.filter((frame) => frame['type'] === 'response.output_item.done').map(item)
    expect(done).toEqual([
      {
        id: rs,
        type: 'reasoning',
        summary: [],
        content: [{ type: 'reasoning_text', text: 'hm' }],
        encrypted_content: sealer.seal('hm'),
      },
      {
        id: msg,
        type: 'message',
        status: 'completed',
        role: 'assistant',
        content: [{ type: 'output_text', annotations: [], logprobs: [], text: 'hello' }],
      },
      { id: fc1, type: 'function_call', status: 'completed', arguments: '{"a": 1.0}', call_id: 'c1', name: 'f' },
    ])
    const response = frames.at(-1)?.['response'] as Wire
    expect(response).toMatchObject({
      id: 'resp_chat-1',
      object: 'response',
      created_at: 7,
      status: 'completed',
      model: 'm',
      output: done,
      usage: {
        input_tokens: 3,
        input_tokens_details: { cached_tokens: 2 },
        output_tokens: 5,
        output_tokens_details: { reasoning_tokens: 1 },
        total_tokens: 8,
      },
    })
    expect(responseOf(request, events)).toEqual(response)
  })

  test('shows reasoning as a summary to a harness that requested one, and includes the text', () => {
    const request = parse({ ...hello, stream: true, reasoning: { summary: 'auto' } })
    const frames = framesOf(streamOf(request, [start, delta({ reasoning: 'hm' }), finish('stop'), end]))
    expect(frames.map((frame) => String(frame['type'])).slice(2, -1)).toEqual([
      'response.output_item.added',
      'response.reasoning_summary_part.added',
      'response.reasoning_summary_text.delta',
      'response.reasoning_summary_text.done',
      'response.reasoning_summary_part.done',
      'response.output_item.done',
    ])
    expect(frames.at(-2)).toMatchObject({
      item: {
        summary: [{ type: 'summary_text', text: 'hm' }],
        content: [{ type: 'reasoning_text', text: 'hm' }],
        encrypted_content: sealer.seal('hm'),
      },
    })
  })

  test('decodes the text of a custom tool while it is sampled', () => {
    const tools = [{ type: 'custom', name: 'patch' }]
    const request = parse({ ...hello, stream: true, tools })
    const pieces = ['{"in', 'put" : "*** Be', 'gin\\', 'n\\u00', 'e9 \\ud8', '3d', '\\ude00', ' \\"', 'x\\q\nend', '"}']
    const events = pieces.map((piece, i) =>
      delta({ toolCalls: [{ index: 0, ...(i === 0 ? { id: 'c', name: 'patch' } : {}), arguments: piece }] }),
    )
    const frames = framesOf(streamOf(request, [start, ...events, finish('tool-calls'), usage, end]))
    const shown = frames.filter((frame) => frame['type'] === 'response.custom_tool_call_input.delta')
    const input = '*** Begin\né 😀 "x\\q\nend'
    expect(shown.map((frame) => frame['delta'])).toEqual(['*** Be', 'gin', '\n', 'é ', '😀', ' "', 'x\\q\nend'])
    expect(frames.at(-3)).toMatchObject({ type: 'response.custom_tool_call_input.done', input })
    expect(frames.at(-2)).toMatchObject({
      item: { type: 'custom_tool_call', id: 'ctc_chat-1_0', call_id: 'c', name: 'patch', status: 'completed', input },
    })
  })

  test('relays the input of a custom tool in another form', () => {
    const request = parse({ ...hello, tools: [{ type: 'custom', name: 'patch' }] })
    const inputOf = (args: string): unknown => wholeOf(request, [call(0, 'patch', args)])[0]?.['input']
    expect(inputOf('{"why":"x","input":"a\\nb"}')).toBe('a\nb')
    expect(inputOf('{"input":"a","why":"x"}')).toBe('a')
    expect(inputOf('{"in put":"a"}')).toBe('{"in put":"a"}')
    expect(inputOf('{"input":5}')).toBe('{"input":5}')
    expect(inputOf('*** Begin')).toBe('*** Begin')
    expect(inputOf('{"input":"cut \\u12')).toBe('cut \\u12')
    expect(inputOf('{"input"')).toBe('{"input"')
    expect(inputOf('')).toBe('')
  })

  test('renders the item type of each kind of tool', () => {
    const request = parse({
      ...hello,
      tools: [
        ...['local_shell', 'shell', 'apply_patch'].map((type) => ({ type })),
        { type: 'tool_search', execution: 'client' },
      ],
    })
    const items = wholeOf(request, [
      call(0, 'local_shell', '{"command": ["ls"], "timeout_ms": null, "working_directory": "/"}'),
      call(1, 'shell', '{"commands": ["ls", "pwd"], "timeout_ms": 5}'),
      call(2, 'apply_patch', '{"type": "update_file", "path": "a", "diff": "+x"}'),
      call(3, 'tool_search', '{"query": "q"}'),
      call(4, 'shell', '{"commands": "ls"}'),
      call(5, 'unheard_of', '{"x'),
    ])
    const status = 'completed'
    expect(items).toEqual([
      {
        id: 'lsh_chat-1_0',
        type: 'local_shell_call',
        status,
        call_id: 'call-0',
        action: { type: 'exec', command: ['ls'], env: {}, working_directory: '/' },
      },
      {
        id: 'sh_chat-1_1',
        type: 'shell_call',
        status,
        call_id: 'call-1',
        action: { commands: ['ls', 'pwd'], timeout_ms: 5, max_output_length: null },
      },
      {
        id: 'apc_chat-1_2',
        type: 'apply_patch_call',
        status,
        call_id: 'call-2',
        operation: { type: 'update_file', path: 'a', diff: '+x' },
      },
      {
        id: 'tsc_chat-1_3',
        type: 'tool_search_call',
        status,
        call_id: 'call-3',
        execution: 'client',
        arguments: { query: 'q' },
      },
      // Arguments that do not match the item: the harness reports an unknown function, and the model reads it.
      {
        id: 'fc_chat-1_4',
        type: 'function_call',
        status,
        arguments: '{"commands": "ls"}',
        call_id: 'call-4',
        name: 'shell',
      },
      { id: 'fc_chat-1_5', type: 'function_call', status, arguments: '{"x', call_id: 'call-5', name: 'unheard_of' },
    ])
  })

  test('generates ids of calls when the engine sends none', () => {
    const request = parse(hello)
    const ids = ['', 'same', 'same'].map((id, index) => delta({ toolCalls: [{ index, id, name: 'f', arguments: '' }] }))
    expect(wholeOf(request, ids).map((item) => item['call_id'])).toEqual(['call_chat-1_0', 'same', 'call_chat-1_2'])
  })

  test('delays text that arrives while a call is open', () => {
    const request = parse({ ...hello, stream: true })
    const deltas = [
      delta({ toolCalls: [{ index: 0, id: 'c', name: 'f', arguments: '{"a":' }] }),
      delta({ text: '\n' }),
      delta({ toolCalls: [{ index: 0, arguments: '1}' }] }),
    ]
    expect(wholeOf(request, deltas, 'length')).toMatchObject([
      { type: 'function_call', arguments: '{"a":1}', status: 'completed' },
      { type: 'message', content: [{ text: '\n' }], status: 'incomplete' },
    ])
  })

  test('renders how an answer ended', () => {
    const request = parse({ ...hello, stream: true })
    const ending = (...events: WireEvent[]): Wire => {
      const frame = framesOf(streamOf(request, [start, delta({ text: 'a' }), ...events, end])).at(-1)
      const { status, incomplete_details: details } = (frame?.['response'] ?? {}) as Wire
      return { type: frame?.['type'], status, details }
    }
    const whole = { type: 'response.completed', status: 'completed', details: null }
    const cut = { type: 'response.incomplete', status: 'incomplete', details: { reason: 'max_output_tokens' } }
    expect(ending(finish('stop'))).toEqual(whole)
    expect(ending(finish('tool-calls'))).toEqual(whole)
    expect(ending(finish('other'))).toEqual(whole)
    expect(ending(finish('length'))).toEqual(cut)
    expect(ending(finish('abort'))).toEqual(cut)
    expect(ending()).toEqual(cut)
    expect(ending(finish('content-filter'))).toEqual({ ...cut, details: { reason: 'content_filter' } })
    expect(streamOf(request, [{ type: 'answer-error', failure: failureOf('upstream.reset') }])).toBe('')
  })

  test('counts tokens when the engine reports no usage', () => {
    const request = parse(hello)
    const counted = (...events: WireEvent[]): unknown => responseOf(request, events)['usage']
    const sampled = delta({ text: 'a', ids: Int32Array.of(4, 5) })
    expect(counted(start, sampled, finish('stop'), end)).toMatchObject({ input_tokens: 3, output_tokens: 2 })
    const late: WireEvent = { type: 'answer-end', promptTokenIds: Int32Array.of(1) }
    expect(counted({ ...start, promptTokenIds: undefined }, late)).toMatchObject({ input_tokens: 1, total_tokens: 1 })
  })

  test('repeats the request, with the API’s own defaults', () => {
    const tools = [{ type: 'web_search' }]
    const request = parse({ ...hello, tools, instructions: 'i', metadata: { a: 'b' }, text: { verbosity: 'low' } })
    expect(responseOf(request, [start, end])).toMatchObject({
      background: false,
      error: null,
      instructions: 'i',
      max_output_tokens: null,
      metadata: { a: 'b' },
      parallel_tool_calls: true,
      previous_response_id: null,
      reasoning: { effort: null, summary: null },
      service_tier: 'default',
      store: true,
      temperature: 1,
      text: { format: { type: 'text' }, verbosity: 'low' },
      tool_choice: 'auto',
      tools,
      top_p: 1,
      truncation: 'disabled',
      user: null,
    })
  })

  test('shows log probabilities only to a harness that requested them', () => {
    const entry = { token: 'a', logprob: -1, bytes: [97], top_logprobs: [] }
    const sampled = delta({ text: 'a', wire: { index: 0, logprobs: { content: [entry] } } })
    const partOf = (request: TurnRequest): unknown =>
      (wholeOf(request, [sampled]) as { content: unknown[] }[])[0]?.content[0]
    expect(partOf(parse(hello))).toMatchObject({ logprobs: [] })
    expect(partOf(parse({ ...hello, include: ['message.output_text.logprobs'] }))).toMatchObject({ logprobs: [entry] })
    expect(partOf(parse({ ...hello, top_logprobs: 2 }))).toMatchObject({ logprobs: [entry] })
  })

  test('renders only the first choice', () => {
    expect(wholeOf(parse(hello), [{ ...delta({ text: 'b' }), choice: 1 } as WireEvent])).toEqual([])
  })

  test('has a keep-alive for every client, also before the first event', () => {
    const request = parse({ ...hello, stream: true })
    const renderer = openaiResponses.createStreamRenderer(request, contextOf())
    expect(framesOf(renderer.keepAlive())).toEqual([{ type: 'keepalive', sequence_number: 0 }])
    expect(framesOf(renderer.render(start))[0]).toMatchObject({ type: 'response.created', sequence_number: 1 })
    const sdk = openaiResponses.createStreamRenderer(request, contextOf({ headers: { 'x-stainless-lang': 'js' } }))
    expect(sdk.keepAlive()).toBe(': keep-alive\n\n')
    sdk.render(start)
    expect(framesOf(sdk.keepAlive())).toMatchObject([
      { type: 'response.in_progress', sequence_number: 2, response: { status: 'in_progress', output: [] } },
    ])
  })
})

describe('compaction', () => {
  const image = 'data:image/png;base64,AA'
  const conversation = [
    {
      role: 'user',
      content: [
        { type: 'input_text', text: 'one' },
        { type: 'input_image', image_url: image },
      ],
    },
    { role: 'assistant', content: 'two' },
  ]
  const answer = [start, delta({ reasoning: 'hm' }), delta({ text: 'all of it' }), finish('stop'), usage, end]

  test('requests a summary from the model and returns it sealed', () => {
    const context = contextOf({ route: route('/v1/responses/compact') })
    const request = parse({ model: 'm', input: conversation, stream: true }, context)
    expect(request.stream).toBe(false)
    expect(request.messages).toHaveLength(3)
    const compacted = responseOf(request, answer, context)
    expect(compacted).toMatchObject({
      id: 'resp_chat-1',
      object: 'response.compaction',
      created_at: 7,
      output: [
        {
          type: 'message',
          role: 'user',
          content: [
            { type: 'input_text', text: 'one' },
            { type: 'input_image', image_url: image },
          ],
        },
        { type: 'compaction', id: 'cmp_chat-1_0' },
      ],
      usage: { total_tokens: 8 },
    })
    const next = [...(compacted['output'] as unknown[]), user('go on')]
    expect(messagesOf(...next)).toEqual([
      { role: 'user', content: [...text('one'), { type: 'image', url: image, detail: 'auto' }] },
      { role: 'user', content: text('Summary of the conversation so far:\n\nall of it') },
      { role: 'user', content: text('go on') },
    ])
    expect(messagesOf({ type: 'compaction', encrypted_content: 'foreign' }, user('go on'))).toHaveLength(1)
    expect(refusal({ model: 'm', input: [] }, context)).toMatchObject({ param: 'input' })
  })

  test('may be requested within a conversation', () => {
    const tools = [{ type: 'function', name: 'f' }]
    const input = [...conversation, { type: 'compaction_trigger' }]
    const request = parse({ model: 'm', stream: true, tools, input })
    expect(request).toMatchObject({ stream: true, toolChoice: 'none', tools: [{ name: 'f' }] })
    const frames = framesOf(streamOf(request, answer))
    expect(frames.map((frame) => frame['type'])).toEqual([
      'response.created',
      'response.in_progress',
      'response.output_item.added',
      'response.output_item.done',
      'response.completed',
    ])
    expect(frames.at(-1)).toMatchObject({ response: { output: [{ type: 'compaction' }] } })
  })
})

// --- errors -----------------------------------------------------------------------------------------------------------

function failureOf(code: FailureCode, fields: Partial<Failure> = {}): Failure {
  return new RolloutError(code, 'so it is', fields).failure
}

describe('renderError()', () => {
  test('has the fields and codes that clients of this API check', () => {
    expect(openaiResponses.renderError(failureOf('request.context-overflow', { param: 'input' }))).toEqual({
      status: 400,
      headers: {},
      body: {
        error: { message: 'so it is', type: 'invalid_request_error', param: 'input', code: 'context_length_exceeded' },
      },
    })
    expect(openaiResponses.renderError(failureOf('upstream.failed', { status: 500 }))).toMatchObject({
      status: 500,
      body: { error: { type: 'server_error', param: null } },
    })
  })

  test('always has retry-after with status 429', () => {
    const limited = failureOf('upstream.rate-limited', { retryAfterSeconds: 3 })
    expect(openaiResponses.renderError(limited).headers).toEqual({ 'retry-after': '3' })
    expect(openaiResponses.renderError(failureOf('upstream.rate-limited')).headers).toEqual({ 'retry-after': '1' })
  })
})

describe('renderStreamError()', () => {
  test('breaks the connection when a retry may help', () => {
    for (const code of ['upstream.reset', 'upstream.rate-limited', 'upstream.bad-stream', 'internal.bug'] as const) {
      expect(openaiResponses.renderStreamError(failureOf(code))).toBeUndefined()
    }
  })

  test('renders the error for clients on OpenAI’s SDKs', () => {
    const headers = { 'user-agent': 'OpenAI/JS 7.53.0', 'x-stainless-lang': 'js' }
    const frames = framesOf(openaiResponses.renderStreamError(failureOf('upstream.reset'), headers) ?? '')
    const message = 'server error: so it is'
    expect(frames).toMatchObject([
      { type: 'error', error: { message } },
      { type: 'response.failed', response: { status: 'failed', error: { message } } },
    ])
  })

  test('renders the error when a retry does not help', () => {
    const frames = framesOf(openaiResponses.renderStreamError(failureOf('request.context-overflow')) ?? '')
    expect(frames).toMatchObject([
      { type: 'error', error: { code: 'context_length_exceeded', message: 'so it is' } },
      { type: 'response.failed', response: { status: 'failed', error: { code: 'context_length_exceeded' } } },
    ])
  })
})

test('renders token counts and models', () => {
  expect(openaiResponses.renderTokenCount(5)).toEqual({ object: 'response.input_tokens', input_tokens: 5 })
  expect(openaiResponses.renderModels(['a'], 7)).toEqual({
    object: 'list',
    data: [{ id: 'a', object: 'model', created: 7, owned_by: 'polar' }],
  })
  expect(openaiResponses.recognises('/v1/responses/resp_1/cancel', {})).toBe(true)
  expect(openaiResponses.recognises('/v1/chat', {})).toBe(false)
  const counting = contextOf({ route: route('/v1/responses/input_tokens') })
  expect(parse({ input: 'x', stream: true }, counting)).toMatchObject({ model: '', stream: false })
})

// --- properties -------------------------------------------------------------------------------------------------------

const offered = [
  { type: 'function', name: 'run', parameters: { type: 'object' } },
  { type: 'namespace', name: 'agents', tools: [{ type: 'function', name: 'spawn' }] },
  { type: 'custom', name: 'patch' },
  { type: 'local_shell' },
  { type: 'shell' },
  { type: 'apply_patch' },
  { type: 'tool_search', execution: 'client' },
]

const anyText = fc.string({ unit: anyCodePoint, minLength: 1 })
const anyArguments = fc.oneof(fc.json(), fc.string({ unit: anyCodePoint }))
const printed = <T>(value: fc.Arbitrary<T>): fc.Arbitrary<string> =>
  fc.tuple(value, fc.constantFrom('', ' ')).map(([it, space]) => JSON.stringify(it, null, space))

const anyCall = fc.oneof(
  fc.tuple(fc.constantFrom('run', 'agents__spawn', 'unheard_of'), anyArguments),
  fc.tuple(fc.constant('patch'), fc.oneof(printed(fc.record({ input: anyText })), anyText)),
  fc.tuple(
    fc.constant('local_shell'),
    fc.oneof(
      anyArguments,
      printed(fc.record({ command: fc.array(fc.string()), timeout_ms: fc.nat() }, { requiredKeys: ['command'] })),
    ),
  ),
  fc.tuple(fc.constant('shell'), fc.oneof(anyArguments, printed(fc.record({ commands: fc.array(fc.string()) })))),
  fc.tuple(
    fc.constant('apply_patch'),
    fc.oneof(
      anyArguments,
      printed(fc.record({ type: fc.constant('create_file'), path: fc.string(), diff: anyText })),
      printed(fc.record({ type: fc.constant('delete_file'), path: fc.string() })),
    ),
  ),
  fc.tuple(
    fc.constant('tool_search'),
    fc.oneof(anyArguments, printed(fc.record({ query: fc.string(), limit: fc.integer() }))),
  ),
)

type Piece = { reasoning: string } | { text: string } | { call: number; id?: string; name?: string; arguments: string }

/** An answer that a model may sample: reasoning, text and calls in any order. */
const anyAnswer = fc
  .array(
    fc.oneof(
      fc.record({ reasoning: anyText }),
      fc.record({ text: anyText }),
      anyCall.map(([name, args]) => ({ name, arguments: args })),
    ),
    { maxLength: 6 },
  )
  .map((parts) => {
    let calls = 0
    return parts.map((part): Piece => {
      if (!('name' in part)) return part
      calls += 1
      return { call: calls - 1, id: `call-${calls}`, name: part.name, arguments: part.arguments }
    })
  })

/** Events that this dialect may send, all of the SDK's union. */
const SDK_EVENTS: ReadonlySet<string> = new Set([
  'response.created',
  'response.in_progress',
  'response.completed',
  'response.incomplete',
  'response.output_item.added',
  'response.output_item.done',
  'response.content_part.added',
  'response.content_part.done',
  'response.output_text.delta',
  'response.output_text.done',
  'response.reasoning_text.delta',
  'response.reasoning_text.done',
  'response.reasoning_summary_part.added',
  'response.reasoning_summary_part.done',
  'response.reasoning_summary_text.delta',
  'response.reasoning_summary_text.done',
  'response.function_call_arguments.delta',
  'response.function_call_arguments.done',
  'response.custom_tool_call_input.delta',
  'response.custom_tool_call_input.done',
] satisfies OpenAI.Responses.ResponseStreamEvent['type'][])

const anyCuts = fc.record({
  sizes: fc.array(fc.integer({ min: 1, max: 7 }), { minLength: 1 }),
  joins: fc.array(fc.boolean()),
})
const oneCut = { sizes: [Number.MAX_SAFE_INTEGER], joins: [] }

/** The same answer in other pieces: texts cut anywhere, consecutive pieces joined where their order allows it. */
function eventsOf(answer: readonly Piece[], cuts: { sizes: number[]; joins: boolean[] }): WireEvent[] {
  const pieces = answer.flatMap((piece) => cutPiece(piece, cuts.sizes))
  const deltas: DeltaEvent[] = []
  for (const [i, piece] of pieces.entries()) {
    const last = deltas.at(-1)
    const fits = last !== undefined && (cuts.joins[i % (cuts.joins.length || 1)] ?? false) && follows(last, piece)
    const target: DeltaEvent = fits ? last : { type: 'choice-delta', choice: 0 }
    if (!fits) deltas.push(target)
    if ('reasoning' in piece) target.reasoning = (target.reasoning ?? '') + piece.reasoning
    else if ('text' in piece) target.text = (target.text ?? '') + piece.text
    else {
      const { call: index, ...fields } = piece
      target.toolCalls = [...(target.toolCalls ?? []), { index, ...fields }]
    }
  }
  return [start, ...deltas, finish('stop'), usage, end]
}

function follows(last: DeltaEvent, piece: Piece): boolean {
  if ('reasoning' in piece) return last.text === undefined && last.toolCalls === undefined
  return 'call' in piece || last.toolCalls === undefined
}

function cutPiece(piece: Piece, sizes: readonly number[]): Piece[] {
  if ('reasoning' in piece) return cutText(piece.reasoning, sizes).map((reasoning) => ({ reasoning }))
  if ('text' in piece) return cutText(piece.text, sizes).map((cut) => ({ text: cut }))
  const { call: index, id, name, arguments: args } = piece
  return cutText(args, sizes).map((cut, i) => ({ call: index, ...(i === 0 ? { id, name } : {}), arguments: cut }))
}

function cutText(whole: string, sizes: readonly number[]): string[] {
  const cuts: string[] = []
  for (let at = 0, i = 0; at < whole.length; i++) {
    const size = sizes[i % sizes.length] ?? 1
    cuts.push(whole.slice(at, at + size))
    at += size
  }
  return cuts.length === 0 ? [''] : cuts
}

/** OpenAI's own client, with the rendered answer as response. */
function clientOf(answer: () => Response): OpenAI {
  return new OpenAI({
    apiKey: 'key',
    baseURL: 'http://gateway/v1',
    maxRetries: 0,
    fetch: async () => answer(),
  })
}

const sse = (body: string): Response => new Response(body, { headers: { 'content-type': 'text/event-stream' } })
const params = { model: 'm', input: 'hello' }

/** Without the fields that the SDK adds. */
function bare(response: object): unknown {
  const strip = (_key: string, value: unknown): unknown => {
    if (typeof value !== 'object' || value === null || Array.isArray(value)) return value
    const { parsed: _p, parsed_arguments: _a, output_parsed: _o, output_text: _t, _request_id, ...rest } = value as Wire
    return rest
  }
  return JSON.parse(JSON.stringify(response, strip))
}

describe('the OpenAI SDK', () => {
  const request = parse({ ...hello, stream: true, tools: offered })

  test('reads the same response from a stream, for every cut, as from a whole answer', async () => {
    await fc.assert(
      fc.asyncProperty(anyAnswer, anyCuts, fc.constantFrom('auto', null), async (answer, cuts, summary) => {
        const asked = parse({ ...request.wire.body, reasoning: { summary } })
        const whole = responseOf(asked, eventsOf(answer, oneCut))
        const stream = streamOf(asked, eventsOf(answer, cuts))
        const helper = clientOf(() => sse(stream)).responses.stream(params)
        expect(bare(await helper.finalResponse())).toEqual(whole)
      }),
      { numRuns: 150 },
    )
  })

  test('assembles the events to the items that they announce', async () => {
    await fc.assert(
      fc.asyncProperty(anyAnswer, anyCuts, async (answer, cuts) => {
        const stream = streamOf(request, eventsOf(answer, cuts))
        const texts = new Map<string, string>()
        let final: Wire | undefined
        for await (const event of await clientOf(() => sse(stream)).responses.create({ ...params, stream: true })) {
          if ('item_id' in event && 'delta' in event && typeof event.delta === 'string') {
            texts.set(event.item_id, (texts.get(event.item_id) ?? '') + event.delta)
          }
          if (event.type === 'response.completed') final = event.response as unknown as Wire
        }
        expect(final).toBeDefined()
        for (const item of (final?.['output'] ?? []) as Wire[]) {
          const [part] = (item['content'] ?? []) as Wire[]
          const shown = part?.['text'] ?? item['arguments'] ?? item['input']
          if (typeof shown === 'string') expect(texts.get(String(item['id'])) ?? '').toBe(shown)
        }
      }),
      { numRuns: 100 },
    )
  })

  test('reads a whole response', async () => {
    const body = responseOf(request, eventsOf([{ reasoning: 'hm' }, { text: 'hi' }], oneCut))
    const response = await clientOf(() => Response.json(body)).responses.create(params)
    expect(response.output_text).toBe('hi')
    expect(bare(response)).toEqual(body)
  })

  test('reads every keep-alive as an event of its union or not at all, and the final response with the real id', async () => {
    const shown = { ...params, reasoning: { summary: 'auto' as const } }
    await fc.assert(
      fc.asyncProperty(anyAnswer, anyCuts, fc.boolean(), async (answer, cuts, isSummary) => {
        const asked = parse({ ...(isSummary ? shown : params), stream: true })
        const context = contextOf({ headers: { 'x-stainless-lang': 'js' } })
        const renderer = openaiResponses.createStreamRenderer(asked, context)
        const events = eventsOf(answer, cuts)
        const frames =
          events.map((event) => renderer.keepAlive() + renderer.render(event)).join('') + renderer.keepAlive()
        const plain = openaiResponses.createStreamRenderer(asked, context)
        const expected = framesOf(events.map((event) => plain.render(event)).join('')).at(-1)?.['response']
        const types: string[] = []
        const helper = clientOf(() => sse(frames)).responses.stream(params)
        helper.on('event', ({ type }) => types.push(type))
        const final = await helper.finalResponse()
        expect(types.filter((type) => !SDK_EVENTS.has(type))).toEqual([])
        expect(JSON.parse(JSON.stringify(bare(final)))).toEqual(expected)
        for await (const { type } of await clientOf(() => sse(frames)).responses.create({ ...params, stream: true })) {
          expect(SDK_EVENTS).toContain(type)
        }
      }),
      { numRuns: 100 },
    )
  })

  test('is not disturbed by keep-alives', async () => {
    const context = contextOf({ headers: { 'x-stainless-lang': 'js' } })
    const renderer = openaiResponses.createStreamRenderer(request, context)
    const events = eventsOf([{ text: 'hello' }], { sizes: [2], joins: [] })
    const stream = events.map((event) => renderer.keepAlive() + renderer.render(event)).join('')
    const helper = clientOf(() => sse(stream)).responses.stream(params)
    expect((await helper.finalResponse()).output_text).toBe('hello')
    const unknown = openaiResponses.createStreamRenderer(request, contextOf())
    const plain = events.map((event) => unknown.keepAlive() + unknown.render(event)).join('')
    const types: string[] = []
    for await (const { type } of await clientOf(() => sse(plain)).responses.create({ ...params, stream: true })) {
      types.push(type)
    }
    expect(types.at(-1)).toBe('response.completed')
  })

  test('recognises rejections and failures', async () => {
    const { status, body, headers } = openaiResponses.renderError(failureOf('upstream.rate-limited'))
    const refused = clientOf(() => Response.json(body, { status, headers })).responses.create(params)
    await expect(refused).rejects.toBeInstanceOf(OpenAI.RateLimitError)
    const broken =
      streamOf(request, [start, delta({ text: 'a' })]) +
      openaiResponses.renderStreamError(failureOf('request.context-overflow'))
    const helper = clientOf(() => sse(broken)).responses.stream(params)
    await expect(helper.finalResponse()).rejects.toMatchObject({ code: 'context_length_exceeded' })
  })
})

/** Changes that clients make to an answer before they return it. */
const echoes: Readonly<Record<string, (item: Wire) => Wire>> = {
  'as it came': (item) => item,
  'without ids and text of the reasoning': ({ id: _id, content, status: _status, ...rest }) =>
    rest['type'] === 'reasoning' ? rest : { ...rest, content: (content as Wire[] | undefined)?.[0]?.['text'] },
}

describe('an answer that a client returns', () => {
  test.for(Object.keys(echoes))('is the answer that was sampled: %s', (name) => {
    const request = parse({ ...hello, tools: offered })
    fc.assert(
      fc.property(anyAnswer, anyCuts, (answer, cuts) => {
        const events = eventsOf(answer, cuts)
        const capture = new TurnCapture()
        for (const event of events) capture.add(event, undefined)
        const response = capture.toResponse()
        const sampled = response?.choices[0]?.message
        if (response === undefined || sampled === undefined) throw new Error('no answer')
        const memory = new AnswerHistory(1024 * 1024)
        memory.remember(request, response)

        const rendered = openaiResponses.renderResponse(request, { response, events }, contextOf()) as Wire
        const output = JSON.parse(JSON.stringify(rendered['output'])) as Wire[]
        const results = output.flatMap((item) =>
          item['call_id'] === undefined
            ? []
            : [{ type: 'function_call_output', call_id: item['call_id'], output: 'ok' }],
        )
        const input = [user('hello'), ...output.map((item) => echoes[name]!(item)), ...results, user('more')]
        const { messages } = memory.restore(parse({ ...hello, tools: offered, input }))
        const isEmpty = sampled.content.length + sampled.toolCalls.length === 0 && sampled.reasoning === undefined
        expect(messages.slice(1, -1)).toEqual([
          ...(isEmpty ? [] : [sampled]),
          ...sampled.toolCalls.map(({ id }) => ({ role: 'tool', toolCallId: id, content: text('ok') })),
        ])
      }),
      { numRuns: runs(100) },
    )
  })
})

// --- fields -----------------------------------------------------------------------------------------------------------

describe('openaiResponsesFields', () => {
  /** What Codex 0.166, Qwen Code 0.24, OpenCode 1.18 and pi 0.73 and 1.5 send. */
  const seen = wordsOf(`
    client_metadata generate include input instructions max_output_tokens model parallel_tool_calls
    previous_response_id prompt_cache_key reasoning reasoning.effort reasoning.summary store stream text
    text.verbosity tool_choice tools type input[].arguments input[].call_id input[].content
    input[].content[].annotations input[].content[].detail input[].content[].image_url
    input[].content[].logprobs input[].content[].text input[].content[].type input[].encrypted_content
    input[].id input[].input input[].internal_chat_message_metadata_passthrough input[].name
    input[].namespace input[].output input[].output[].detail input[].output[].image_url
    input[].output[].type input[].role input[].status input[].summary input[].summary[].text
    input[].summary[].type input[].type tools[].description tools[].execution tools[].external_web_access
    tools[].format tools[].format.definition tools[].format.syntax tools[].format.type tools[].name
    tools[].parameters tools[].search_content_types tools[].strict tools[].tools tools[].tools[].description
    tools[].tools[].name tools[].tools[].parameters tools[].tools[].strict tools[].tools[].type tools[].type
  `)
  const fields = openaiResponsesFields.map(({ field }) => field)

  test('documents every field that harnesses send', () => {
    expect(seen.filter((path) => !fields.includes(path))).toEqual([])
    expect(fields).toEqual([...new Set(fields)])
  })
})
