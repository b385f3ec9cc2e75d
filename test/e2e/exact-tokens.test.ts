import type OpenAI from 'openai'
import { describe, expect, test } from 'vitest'
import type { Turn } from '../../src/model/turn.ts'
import { Stack } from '../support/stack.ts'

/** Whether the next prompt starts with the previous prompt and its sampled tokens, and is longer. */
function extendsLiterally(turn: Turn, next: Turn): boolean {
  const before = [...(turn.response?.promptIds ?? []), ...(turn.response?.choices[0]?.ids ?? [])]
  const after = next.response?.promptIds ?? new Int32Array()
  return after.length > before.length && before.every((id, i) => id === after[i])
}

async function converse(stack: Stack, questions: readonly string[], options: { stream: boolean }): Promise<void> {
  const messages: OpenAI.ChatCompletionMessageParam[] = []
  for (const [i, content] of questions.entries()) {
    messages.push({ role: 'user', content })
    const body = { model: 'tiny', messages, seed: i, max_tokens: 60 }
    const answer = options.stream
      ? await stack.client().chat.completions.stream(body).finalChatCompletion()
      : await stack.client().chat.completions.create(body)
    messages.push({ role: 'assistant', content: answer.choices[0]?.message.content ?? '' })
  }
}

const questions = [
  '你好，讲一个故事。',
  '然后呢？',
  '为什么？',
  'Tell me more 🐙',
  '谢谢你！',
  '再见。',
  '好。',
  '嗯？',
]

describe('exact continuation of conversations', () => {
  test('every prompt starts with all earlier prompt and sampled tokens, or the log states why a new segment begins', async () => {
    for (const stream of [true, false]) {
      await using stack = await Stack.start()
      await converse(stack, questions, { stream })
      const { turns } = await stack.recorded()
      for (const [i, turn] of turns.slice(1).entries()) {
        const before = turns[i] as Turn
        const isTruncated = before.response?.choices[0]?.finishReason === 'length'
        // A truncated turn has no sampled end token, so a new segment begins and the log records the reason.
        if (isTruncated) expect(turn.forced['begins']).toBe('truncated-turn')
        else {
          expect(turn.forced['continues']).toBe(before.id)
          expect(extendsLiterally(before, turn)).toBe(true)
        }
        expect(turn.response?.grade).toBe('exact')
      }
    }
  })

  test('a conversation continues from the kept choice, also after a sub-agent with more calls', async () => {
    const lines = Array.from({ length: 24 }, (_, i) => `    - { text: "Line ${i}." }`).join('\n')
    await using stack = await Stack.start({ script: `scenarios:\n  main:\n${lines}\n  sub:\n${lines}\n` })
    const complete = async (messages: OpenAI.ChatCompletionMessageParam[], n = 1): Promise<void> => {
      const { choices } = await stack.client().chat.completions.create({ model: 'tiny', messages, n })
      messages.push({ role: 'assistant', content: choices.at(-1)?.message.content ?? '' })
      messages.push({ role: 'user', content: 'go on' })
    }
    const main: OpenAI.ChatCompletionMessageParam[] = [{ role: 'user', content: 'SCRIPT:main' }]
    await complete(main, 2)
    const sub: OpenAI.ChatCompletionMessageParam[] = [{ role: 'user', content: 'SCRIPT:sub' }]
    for (let i = 0; i < 20; i++) await complete(sub)
    await complete(main)
    const { turns } = await stack.recorded()
    expect(turns[1]?.forced).toMatchObject({ begins: 'new-conversation' })
    for (const [i, turn] of turns.slice(2, 21).entries()) expect(turn.forced['continues']).toBe(turns[i + 1]?.id)
    expect(turns[21]?.forced).toMatchObject({ continues: turns[0]?.id })
  })

  test('a tool loop of twelve rounds is one chain, even if the harness reformats the arguments', async () => {
    const rounds = Array.from(
      { length: 12 },
      (_, i) => `    - { text: "Round ${i}.", tool_calls: [{ name: bash, arguments: '{"n":  ${i}.0}' }] }`,
    )
    await using stack = await Stack.start({ script: `scenarios:\n  loop:\n${rounds.join('\n')}\n    - text: done\n` })
    const tools: OpenAI.ChatCompletionTool[] = [
      { type: 'function', function: { name: 'bash', parameters: { type: 'object' } } },
    ]
    const messages: OpenAI.ChatCompletionMessageParam[] = [{ role: 'user', content: 'SCRIPT:loop' }]
    for (let round = 0; round <= 12; round++) {
      const answer = await stack.client().chat.completions.create({ model: 'tiny', messages, tools })
      const message = answer.choices[0]?.message
      const calls = (message?.tool_calls ?? []).filter((call) => call.type === 'function')
      messages.push({
        role: 'assistant',
        content: message?.content ?? null,
        tool_calls: calls.map((call) => ({
          ...call,
          function: { ...call.function, arguments: JSON.stringify(JSON.parse(call.function.arguments)) },
        })),
      })
      messages.push(
        ...calls.map((call) => ({ role: 'tool' as const, tool_call_id: call.id, content: `result ${round}` })),
      )
    }
    const { turns } = await stack.recorded()
    expect(turns).toHaveLength(13)
    expect(turns.slice(1).map((turn, i) => extendsLiterally(turns[i] as Turn, turn))).toEqual(Array(12).fill(true))
    expect(turns.every((turn) => turn.response?.grade === 'exact')).toBe(true)
  })
})
