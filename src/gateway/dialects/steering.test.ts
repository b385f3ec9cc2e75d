import { describe, expect, test } from 'vitest'
import type { TurnRequest } from '../../model/turn.ts'
import { grammarOf, steeringOf } from '../../model/steering.ts'
import { bareContext } from './dialect.ts'
import { dialects } from './index.ts'

type Body = Record<string, unknown>

function parse(id: string, value: Body): TurnRequest {
  const dialect = dialects.find((one) => one.id === id)!
  const route = dialect.routes.find(({ kind }) => kind === 'generate')!
  return dialect.parseRequest({ text: JSON.stringify(value), value }, { ...bareContext(route), wildcards: ['m'] })
}

const parameters = { type: 'object', properties: {} }
const schema = { type: 'object' }

/** A request of each API, and the fields for each kind of steering. */
const APIS: Record<string, { plain: Body; json: Body; required: Body; named: Body; strict?: Body; prefill: Body }> = {
  'openai-chat': (() => {
    const tools = [{ type: 'function', function: { name: 'f', parameters } }]
    const plain = { model: 'm', messages: [{ role: 'user', content: 'hi' }], tools, tool_choice: 'auto' }
    return {
      plain: { ...plain, temperature: 0, stop: ['x'], max_tokens: 5, n: 2, response_format: { type: 'text' } },
      json: { ...plain, response_format: { type: 'json_schema', json_schema: { name: 5, schema } } },
      required: { ...plain, tool_choice: 'required' },
      named: { ...plain, tool_choice: { type: 'function', function: { name: 'f' } } },
      strict: { ...plain, tools: [{ type: 'function', function: { name: 'f', parameters, strict: true } }] },
      prefill: { ...plain, messages: [...plain.messages, { role: 'assistant', content: 'Sure:' }] },
    }
  })(),
  'openai-responses': (() => {
    const tools = [{ type: 'function', name: 'f', parameters, strict: false }]
    const plain = { model: 'm', input: [{ role: 'user', content: 'hi' }], tools, tool_choice: 'auto' }
    return {
      plain,
      json: { ...plain, text: { format: { type: 'json_schema', name: 's', schema } } },
      required: { ...plain, tool_choice: 'required' },
      named: { ...plain, tool_choice: { type: 'function', name: 'f' } },
      strict: { ...plain, tools: [{ type: 'function', name: 'f', parameters, strict: true }] },
      prefill: { ...plain, input: [...plain.input, { role: 'assistant', content: 'Sure:' }] },
    }
  })(),
  'anthropic-messages': (() => {
    const tools = [{ name: 'f', input_schema: parameters }]
    const plain = { model: 'm', max_tokens: 9, messages: [{ role: 'user', content: 'hi' }], tools }
    return {
      plain: { ...plain, tool_choice: { type: 'auto' } },
      json: { ...plain, output_config: { format: { type: 'json_schema', schema } } },
      required: { ...plain, tool_choice: { type: 'any' } },
      named: { ...plain, tool_choice: { type: 'tool', name: 'f' } },
      strict: { ...plain, tools: [{ name: 'f', input_schema: parameters, strict: true }] },
      prefill: { ...plain, messages: [...plain.messages, { role: 'assistant', content: 'Sure:' }] },
    }
  })(),
  'google-generate': (() => {
    const contents = [{ role: 'user', parts: [{ text: 'hi' }] }]
    const plain = { contents, tools: [{ functionDeclarations: [{ name: 'f', parameters }] }] }
    const choose = (config: Body): Body => ({ ...plain, toolConfig: { functionCallingConfig: config } })
    return {
      plain: choose({ mode: 'AUTO' }),
      json: { ...plain, generationConfig: { responseMimeType: 'application/json' } },
      required: choose({ mode: 'ANY' }),
      named: choose({ mode: 'ANY', allowedFunctionNames: ['f'] }),
      prefill: { ...plain, contents: [...contents, { role: 'model', parts: [{ text: 'Sure:' }] }] },
    }
  })(),
}

describe.each(Object.entries(APIS))('steeringOf() on %s', (id, { plain, json, required, named, strict, prefill }) => {
  test.each([
    ['ordinary sampling parameters', plain, []],
    ['a JSON answer', json, ['response-format']],
    ['any tool', required, ['tool-choice']],
    ['one tool', named, ['tool-choice']],
    ...(strict === undefined ? [] : [['strict tools', strict, ['strict-tools']] as [string, Body, string[]]]),
    ['a last message of the assistant', prefill, ['prefill']],
  ])('%s', (_, body, expected) => {
    expect(steeringOf(parse(id, body))).toEqual(expected)
  })

  test('grammarOf() names the restrictions as they are sent to the engine', () => {
    expect(grammarOf(parse(id, plain))).toBeUndefined()
    expect(grammarOf(parse(id, prefill))).toBeUndefined()
    expect(grammarOf(parse(id, required))).toEqual({ toolChoice: 'required' })
    expect(grammarOf(parse(id, named))).toEqual({ toolChoice: { name: 'f' } })
    expect(Object.keys(grammarOf(parse(id, json)) ?? {})).toEqual(['responseFormat'])
    if (strict !== undefined) expect(grammarOf(parse(id, strict))).toEqual({ strictTools: ['f'] })
  })
})
