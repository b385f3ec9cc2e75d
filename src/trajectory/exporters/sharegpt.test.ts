import { expect } from 'vitest'
import * as z from 'zod'
import {
  chatCalls,
  chatParts,
  chatReasoning,
  chatText,
  toChatMessage,
  type ChatMessage,
} from '../../model/chat-message.ts'
import { describeExporter, readLines } from './exporter.contract.ts'
import { exporters } from './index.ts'

/** Format of LLaMA-Factory's SharegptDatasetConverter: both sides alternate, and the model's side is last. */
const Row = z
  .strictObject({
    conversations: z.array(
      z.strictObject({
        from: z.enum(['human', 'observation', 'gpt', 'function_call']),
        value: z.string(),
        weight: z.literal([0, 1]).optional(),
      }),
    ),
    system: z.string(),
    tools: z.string(),
    images: z.array(z.string()),
  })
  .refine(({ conversations }) => conversations.length % 2 === 0)
  .refine(({ conversations }) =>
    conversations.every(({ from, weight }, i) =>
      i % 2 === 0
        ? ['human', 'observation'].includes(from) && weight === undefined
        : ['gpt', 'function_call'].includes(from) && weight !== undefined,
    ),
  )
type Row = z.infer<typeof Row>

/** LLaMA-Factory's FunctionFormatter: the text next to the call, and the calls with their arguments as text. */
function readCalls(value: string): { text: string; calls: { name: string; arguments: string }[] } {
  const marked = /<tool_call>([\s\S]*?)<\/tool_call>/.exec(value)
  const json = marked?.[1] ?? value
  const parsed = JSON.parse(json) as { name: string; arguments: unknown } | { name: string; arguments: unknown }[]
  const source = (Array.isArray(parsed) ? parsed : [parsed]).map((call) => ({
    name: call.name,
    // Text that is not a JSON object is a string; an object is searched in the original text below.
    arguments: typeof call.arguments === 'string' ? call.arguments : JSON.stringify(call.arguments),
  }))
  return { text: marked === null ? '' : value.replace(marked[0], ''), calls: source }
}

/** Compares as JSON. */
function sameJson(text: string): string {
  try {
    const value: unknown = JSON.parse(text)
    return typeof value === 'object' && value !== null && !Array.isArray(value) ? JSON.stringify(value) : text
  } catch {
    return text
  }
}

function thoughtOf(message: ChatMessage): string {
  const thought = chatReasoning(message)
  return thought === undefined ? '' : `<think>\n${thought}\n</think>\n\n`
}

function isMisread(message: ChatMessage): boolean {
  return chatCalls(message).length > 0 && (thoughtOf(message) + chatText(message)).includes('<tool_call>')
}

function placeholders(message: ChatMessage): string {
  return chatParts(message.content)
    .map((part) => (part.type === 'text' ? part.text : '<image>'))
    .join('')
}

describeExporter('sharegpt', {
  create: () => exporters.create({ kind: 'sharegpt', reasoning: 'text' }, {}),
  read: (file) => readLines(file).map((row) => Row.parse(row)),
  check(records, session) {
    const kept = [...session.samples()]
      .map((sample) => ({ sample, ...sample.messages() }))
      .filter(({ prompt, response }) => ![...prompt, ...response].map(toChatMessage).some(isMisread))
    expect(records).toHaveLength(kept.length)
    for (const [i, record] of records.entries()) {
      const row = record as Row
      const { sample, prompt, response, tools } = kept[i]!
      const messages = [...prompt, ...response].map(toChatMessage)
      expect(row.tools === '' ? null : JSON.parse(row.tools)).toEqual(tools)
      expect(row.system).toBe(
        messages
          .filter(({ role }) => role === 'system')
          .map(chatText)
          .join('\n\n'),
      )
      const images = messages.flatMap(({ content }) => chatParts(content).filter(({ type }) => type === 'image'))
      expect(row.images).toHaveLength(images.length)
      const answers = row.conversations.filter(({ weight }) => weight !== undefined)
      const assistantMessages = messages.filter(({ role }) => role === 'assistant')
      expect(answers).toHaveLength(assistantMessages.length)
      for (const [at, message] of assistantMessages.entries()) {
        const { from, value } = answers[at]!
        const calls = chatCalls(message)
        if (calls.length === 0) {
          expect([from, value]).toEqual(['gpt', thoughtOf(message) + chatText(message)])
          continue
        }
        expect(from).toBe('function_call')
        const read = readCalls(value)
        expect(read.text).toBe(thoughtOf(message) + chatText(message))
        expect(read.calls).toEqual(calls.map((call) => ({ name: call.name, arguments: sameJson(call.arguments) })))
        for (const call of calls) {
          if (!/<\/?(?:tool_call|think)>/.test(call.arguments) && sameJson(call.arguments) !== call.arguments) {
            expect(value).toContain(call.arguments)
          }
        }
      }
      const weights = answers.map(({ weight }) => weight)
      expect(weights.slice(-sample.calls.length)).toEqual(sample.calls.map(({ isTrained }) => Number(isTrained)))
      const inputs = row.conversations.filter(({ weight }) => weight === undefined).map(({ value }) => value)
      const expected = messages.filter(({ role }) => role === 'user' || role === 'tool').map(placeholders)
      expect(inputs.join('\n').replaceAll(/\n<\/tool_response>\n<tool_response>|\n(?=\n)/g, '')).toBe(
        expected.join('\n').replaceAll(/\n(?=\n)/g, ''),
      )
    }
  },
})
