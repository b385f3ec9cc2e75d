import Anthropic from '@anthropic-ai/sdk'
import { GoogleGenAI, type Content, type Part } from '@google/genai'
import OpenAI from 'openai'
import { describe, expect, test } from 'vitest'
import { textOf } from '../../src/model/message.ts'
import type { SessionRecord } from '../../src/model/session.ts'
import { Stack } from '../support/stack.ts'

const SCRIPT = `
scenarios:
  go:
    - reasoning: "I weigh it, 🙂 slowly"
      text: "Ünïcödé answer."
      tool_calls:
        - { name: bash, arguments: '{"command":  "echo \\"hi\\"", "n": 1.0}' }
        - { name: read, arguments: { path: "a b.txt" } }
    - text: All done.
`
const PROMPT = 'SCRIPT:go please'
const ARGUMENTS = ['{"command":  "echo \\"hi\\"", "n": 1.0}', '{"path": "a b.txt"}']
const parameters = { type: 'object', properties: {} }

/** The first answer as every SDK must parse it. */
const expected = {
  text: 'Ünïcödé answer.',
  calls: [
    { name: 'bash', arguments: { command: 'echo "hi"', n: 1 } },
    { name: 'read', arguments: { path: 'a b.txt' } },
  ],
}

function parsed(name: string, args: string): { name: string; arguments: unknown } {
  return { name, arguments: JSON.parse(args) as unknown }
}

/** Expects two turns, each once streamed and once not, stored exactly as sampled. */
async function expectStored(session: SessionRecord): Promise<void> {
  expect(session).toMatchObject({ complete: true })
  expect(session.turns.map((turn) => [turn.stream, turn.delivery, turn.response?.grade])).toEqual([
    [true, 'delivered', 'exact'],
    [true, 'delivered', 'exact'],
    [false, 'delivered', 'exact'],
    [false, 'delivered', 'exact'],
  ])
  for (const turn of [session.turns[0], session.turns[2]]) {
    const message = turn?.response?.choices[0]?.message
    expect(message && textOf(message)).toBe(expected.text)
    expect(message?.reasoning).toBe('I weigh it, 🙂 slowly')
    expect(message?.toolCalls.map((call) => call.arguments)).toEqual(ARGUMENTS)
  }
  for (const turn of [session.turns[1], session.turns[3]]) {
    expect(turn?.response?.choices[0]?.message.content).toEqual([{ type: 'text', text: 'All done.' }])
  }
}

describe('the vendors’ own SDKs, through the gateway', () => {
  test('OpenAI Responses', async () => {
    await using stack = await Stack.start({ script: SCRIPT })
    const client = new OpenAI({ baseURL: `${stack.session.baseUrl}/v1`, apiKey: stack.session.key, maxRetries: 0 })
    const tools = ['bash', 'read'].map((name) => ({ type: 'function' as const, name, parameters, strict: false }))
    for (const stream of [true, false]) {
      const send = async (input: OpenAI.Responses.ResponseInput): Promise<OpenAI.Responses.Response> => {
        const body = { model: 'tiny', input, tools }
        return stream ? client.responses.stream(body).finalResponse() : client.responses.create(body)
      }
      const input: OpenAI.Responses.ResponseInput = [{ role: 'user', content: PROMPT }]
      const first = await send(input)
      expect(first.status).toBe('completed')
      expect(first.output_text).toBe(expected.text)
      const calls = first.output.filter((item) => item.type === 'function_call')
      expect(calls.map((call) => parsed(call.name, call.arguments))).toEqual(expected.calls)
      expect(calls.map((call) => call.arguments)).toEqual(ARGUMENTS)
      expect(first.usage?.input_tokens).toBeGreaterThan(10)
      const outputs = calls.map(({ call_id }) => ({ type: 'function_call_output' as const, call_id, output: 'ok' }))
      const second = await send([...input, ...(first.output as OpenAI.Responses.ResponseInputItem[]), ...outputs])
      expect(second.output_text).toBe('All done.')
    }
    await expectStored(await stack.recorded())
  })

  test('OpenAI Responses with previous_response_id', async () => {
    await using stack = await Stack.start({ script: SCRIPT })
    const client = new OpenAI({ baseURL: `${stack.session.baseUrl}/v1`, apiKey: stack.session.key, maxRetries: 0 })
    const tools = ['bash', 'read'].map((name) => ({ type: 'function' as const, name, parameters, strict: false }))
    const first = await client.responses.create({ model: 'tiny', input: PROMPT, tools })
    const calls = first.output.filter((item) => item.type === 'function_call')
    const input = calls.map(({ call_id }) => ({ type: 'function_call_output' as const, call_id, output: 'ok' }))
    const second = await client.responses.create({ model: 'tiny', input, tools, previous_response_id: first.id })
    expect(second.output_text).toBe('All done.')
    const unknown = client.responses.create({ model: 'tiny', input: 'x', previous_response_id: 'resp_nothing' })
    await expect(unknown).rejects.toMatchObject({ status: 400 })
  })

  test('Anthropic Messages', async () => {
    await using stack = await Stack.start({ script: SCRIPT })
    const client = new Anthropic({ baseURL: stack.session.baseUrl, apiKey: stack.session.key, maxRetries: 0 })
    const tools = ['bash', 'read'].map((name) => ({ name, input_schema: { type: 'object' as const } }))
    for (const stream of [true, false]) {
      const send = async (messages: Anthropic.MessageParam[]): Promise<Anthropic.Message> => {
        const body = { model: 'tiny', max_tokens: 500, messages, tools }
        return stream ? client.messages.stream(body).finalMessage() : client.messages.create(body)
      }
      const messages: Anthropic.MessageParam[] = [{ role: 'user', content: PROMPT }]
      const first = await send(messages)
      expect(first.stop_reason).toBe('tool_use')
      expect(first.content.flatMap((block) => (block.type === 'text' ? [block.text] : [])).join('')).toBe(expected.text)
      const calls = first.content.filter((block) => block.type === 'tool_use')
      expect(calls.map((call) => ({ name: call.name, arguments: call.input }))).toEqual(expected.calls)
      expect(first.usage.input_tokens).toBeGreaterThan(10)
      const results = calls.map(({ id }) => ({ type: 'tool_result' as const, tool_use_id: id, content: 'ok' }))
      const second = await send([
        ...messages,
        { role: 'assistant', content: first.content },
        { role: 'user', content: results },
      ])
      expect(second.content).toMatchObject([{ type: 'text', text: 'All done.' }])
    }
    const { input_tokens } = await client.messages.countTokens({
      model: 'tiny',
      messages: [{ role: 'user', content: 'hi' }],
    })
    expect(input_tokens).toBeGreaterThan(5)
    const models = await client.models.list()
    expect(models.data.map((model) => model.id)).toEqual(['tiny'])
    await expectStored(await stack.recorded())
  })

  test('countTokens() of Anthropic Messages returns the prompt length of the call, also for a literal continuation', async () => {
    await using stack = await Stack.start({ script: SCRIPT.replace(/reasoning: .*\n +/, '') })
    const client = new Anthropic({ apiKey: stack.session.key, baseURL: stack.session.baseUrl, maxRetries: 0 })
    const system: Anthropic.TextBlockParam[] = [
      { type: 'text', text: 'x-anthropic-billing-header: cc_version=2.1.325.a1b; cc_entrypoint=sdk-cli;' },
      { type: 'text', text: 'You are an agent.' },
    ]
    const tools: Anthropic.Tool[] = [{ name: 'bash', input_schema: { type: 'object', properties: {} } }]
    const counts: number[] = []
    const send = async (messages: Anthropic.MessageParam[]): Promise<Anthropic.Message> => {
      counts.push((await client.messages.countTokens({ model: 'tiny', system, messages, tools })).input_tokens)
      return client.messages.create({ model: 'tiny', max_tokens: 500, system, messages, tools })
    }
    const messages: Anthropic.MessageParam[] = [{ role: 'user', content: PROMPT }]
    const first = await send(messages)
    const calls = first.content.filter((block) => block.type === 'tool_use')
    const results = calls.map(({ id }) => ({ type: 'tool_result' as const, tool_use_id: id, content: 'ok' }))
    await send([...messages, { role: 'assistant', content: first.content }, { role: 'user', content: results }])
    const { turns } = await stack.recorded()
    expect(counts).toEqual(turns.map(({ response }) => response?.promptIds.length))
    expect(turns[1]?.forced).toMatchObject({ continues: turns[0]?.id })
  })

  test('Google generateContent', async () => {
    await using stack = await Stack.start({ script: SCRIPT })
    const client = new GoogleGenAI({ apiKey: stack.session.key, httpOptions: { baseUrl: stack.session.baseUrl } })
    const functionDeclarations = ['bash', 'read'].map((name) => ({ name, parametersJsonSchema: parameters }))
    const config = { tools: [{ functionDeclarations }], thinkingConfig: { includeThoughts: true } }
    for (const stream of [true, false]) {
      const send = async (contents: Content[]): Promise<Part[]> => {
        const request = { model: 'tiny', contents, config }
        const chunks = stream
          ? await Array.fromAsync(await client.models.generateContentStream(request))
          : [await client.models.generateContent(request)]
        return chunks.flatMap((chunk) => chunk.candidates?.[0]?.content?.parts ?? [])
      }
      const contents = [{ role: 'user', parts: [{ text: PROMPT }] }]
      const first = await send(contents)
      expect(first.map((part) => (part.thought ? '' : (part.text ?? ''))).join('')).toBe(expected.text)
      const calls = first.flatMap((part) => (part.functionCall ? [part.functionCall] : []))
      expect(calls.map((call) => ({ name: call.name, arguments: call.args }))).toEqual(expected.calls)
      const second = await send([
        ...contents,
        { role: 'model', parts: first },
        {
          role: 'user',
          parts: calls.map(({ id, name }) => ({ functionResponse: { id, name, response: { output: 'ok' } } })),
        },
      ])
      expect(second.map((part) => part.text ?? '').join('')).toBe('All done.')
    }
    const { totalTokens } = await client.models.countTokens({ model: 'tiny', contents: 'hi' })
    expect(totalTokens).toBeGreaterThan(5)
    await expectStored(await stack.recorded())
  })
})
