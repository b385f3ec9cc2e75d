import Anthropic from '@anthropic-ai/sdk'
import type OpenAI from 'openai'
import { describe, expect, test } from 'vitest'
import type { EngineOptions } from '../../packages/tiny-engine/src/engine.ts'
import { Stack } from '../support/stack.ts'

const SCRIPT = `
scenarios:
  go:
    - reasoning: "I think"
      text: "I look first."
      tool_calls: [{ name: bash, arguments: '{"command":  "ls -la"}' }]
    - text: "There are two files."
default: { text: "Hello there." }
`

type Via = 'chat' | 'completions'
const engines: [name: string, engine: Pick<EngineOptions, 'wire' | 'wireVersion' | 'scaleOut'>, via: Via][] = [
  ['vLLM 0.32', { wire: 'vllm' }, 'chat'],
  ['vLLM 0.32 with --enable-scale-out', { wire: 'vllm', scaleOut: true }, 'chat'],
  ['vLLM 0.27', { wire: 'vllm', wireVersion: '0.27.1' }, 'chat'],
  ['vLLM 0.12', { wire: 'vllm', wireVersion: '0.12' }, 'completions'],
  ['SGLang 0.5.18', { wire: 'sglang' }, 'chat'],
  ['SGLang 0.5.20', { wire: 'sglang', wireVersion: '0.5.20' }, 'chat'],
  ['llama.cpp', { wire: 'llamacpp' }, 'completions'],
]

const parameters = { type: 'object' as const, properties: { command: { type: 'string' } } }
const tools: OpenAI.ChatCompletionTool[] = [{ type: 'function', function: { name: 'bash', parameters } }]

describe.each(engines)('%s behind the gateway', (_, engine, via) => {
  test('a session continues tokens as the probe reported, and its record has the reason', async () => {
    const rounds = Array.from(
      { length: 3 },
      (_round, i) =>
        `    - { reasoning: "So ${i}", text: "Round ${i}.", tool_calls: [{ name: bash, arguments: '{"n":  ${i}.0}' }] }`,
    )
    const script = `scenarios:\n  loop:\n${rounds.join('\n')}\n    - text: done\n${SCRIPT.slice(SCRIPT.indexOf('default'))}`
    await using stack = await Stack.start({ script, engine, continuation: 'preserve' })
    const messages: OpenAI.ChatCompletionMessageParam[] = [{ role: 'user', content: 'SCRIPT:loop' }]
    for (let round = 0; round < 4; round++) {
      const body = { model: 'x', messages, tools, stream_options: { include_usage: true } }
      const { choices } = await stack.client().chat.completions.stream(body).finalChatCompletion()
      const { content, tool_calls: calls = [] } = choices[0]!.message
      messages.push({ role: 'assistant', content, ...(calls.length === 0 ? {} : { tool_calls: calls }) })
      messages.push(...calls.map(({ id }) => ({ role: 'tool' as const, tool_call_id: id, content: 'ok' })))
    }
    const { turns, origin } = await stack.recorded()
    expect(origin['continuation']).toMatchObject({ mode: 'preserve', via, why: expect.any(String) })
    expect(turns.map(({ response }) => response?.grade)).toEqual(Array(4).fill('exact'))
    for (const [i, turn] of turns.slice(1).entries()) {
      const { response, id } = turns[i]!
      expect(turn.forced).toMatchObject({ continues: id })
      expect(turn.forced['parsed_by']).toBe(via === 'completions' ? 'gateway' : undefined)
      const before = [...(response?.promptIds ?? []), ...(response?.choices[0]?.ids ?? [])]
      expect(Array.from(turn.response?.promptIds.subarray(0, before.length) ?? [])).toEqual(before)
    }
    // A completion has no grammar, so this call is rendered by the engine.
    if (via === 'completions') {
      await using other = await Stack.start({ script: SCRIPT, engine })
      const asked: OpenAI.ChatCompletionMessageParam[] = [{ role: 'user', content: 'x' }]
      const { choices } = await other.client().chat.completions.create({ model: 'x', messages: asked, tools })
      const next = [...asked, choices[0]!.message, { role: 'user' as const, content: 'again' }]
      await other.client().chat.completions.create({ model: 'x', messages: next, tools, tool_choice: 'required' })
      expect((await other.recorded()).turns[1]?.forced).toMatchObject({ begins: 'needs-chat' })
    }
  })

  test('a streamed tool loop receives the whole text, and every token is recorded as the engine sampled it', async () => {
    await using stack = await Stack.start({ script: SCRIPT, engine })
    const messages: OpenAI.ChatCompletionMessageParam[] = [{ role: 'user', content: 'SCRIPT:go' }]
    const complete = (): Promise<OpenAI.ChatCompletion> =>
      stack
        .client()
        .chat.completions.stream({ model: 'x', messages, tools, stream_options: { include_usage: true } })
        .finalChatCompletion()
    const first = await complete()
    const [choice] = first.choices
    const [call] = choice?.message.tool_calls ?? []
    expect(choice?.message.content).toBe('I look first.')
    expect(call).toMatchObject({ type: 'function', function: { name: 'bash', arguments: '{"command":  "ls -la"}' } })
    expect(choice?.finish_reason).toBe('tool_calls')
    expect(first.usage?.completion_tokens).toBeGreaterThan(10)
    messages.push(choice!.message, { role: 'tool', tool_call_id: call?.id ?? '', content: 'a b' })
    expect((await complete()).choices[0]?.message.content).toBe('There are two files.')
    await expectSameAsEngine(stack)
  })

  test('a harness that uses the Anthropic API can stream too', async () => {
    await using stack = await Stack.start({ script: SCRIPT, engine })
    const client = new Anthropic({ baseURL: stack.session.baseUrl, apiKey: stack.session.key, maxRetries: 0 })
    const message = await client.messages
      .stream({
        model: 'claude',
        max_tokens: 200,
        messages: [{ role: 'user', content: 'SCRIPT:go' }],
        tools: [{ name: 'bash', input_schema: parameters }],
      })
      .finalMessage()
    expect(message.stop_reason).toBe('tool_use')
    expect(message.content.filter(({ type }) => type !== 'thinking')).toMatchObject([
      { type: 'text', text: 'I look first.' },
      { type: 'tool_use', name: 'bash', input: { command: 'ls -la' } },
    ])
    await expectSameAsEngine(stack)
  })
})

test('calls to a server without token ids are recorded as text, and its streams are relayed', async () => {
  await using stack = await Stack.start({ script: SCRIPT, engine: { wire: 'openai' } })
  const messages: OpenAI.ChatCompletionMessageParam[] = [{ role: 'user', content: 'SCRIPT:go' }]
  const answer = await stack.client().chat.completions.stream({ model: 'x', messages, tools }).finalChatCompletion()
  expect(answer.choices[0]?.finish_reason).toBe('tool_calls')
  const [turn] = (await stack.recorded()).turns
  expect(turn).toMatchObject({ response: { grade: 'text-only', choices: [{ message: { reasoning: 'I think' } }] } })
})

async function expectSameAsEngine(stack: Stack): Promise<void> {
  const { turns } = await stack.recorded()
  const calls = (await stack.engineCalls()).slice(-turns.length)
  expect(turns.map(({ response }) => [response?.grade, response?.gradeReasons])).toEqual(turns.map(() => ['exact', []]))
  expect(turns.map(({ response }) => Array.from(response?.promptIds ?? []))).toEqual(
    calls.map((call) => call.prompt_token_ids),
  )
  expect(turns.map(({ response }) => Array.from(response?.choices[0]?.ids ?? []))).toEqual(
    calls.map((call) => call.choices[0]?.token_ids),
  )
  expect(turns.map(({ response }) => Array.from(response?.choices[0]?.logprobs ?? []))).toEqual(
    calls.map((call) => call.choices[0]?.logprobs.map(Math.fround)),
  )
}
