import { expect, test } from 'vitest'
import * as z from 'zod'
import fc from 'fast-check'
import { chatReasoning, chatText, toChatMessage, type ChatMessage } from '../../model/chat-message.ts'
import { anySession, describeExporter, readLines, writeFile } from './exporter.contract.ts'
import { exporters } from './index.ts'

const Part = z.union([
  z.strictObject({ type: z.literal('text'), text: z.string() }),
  z.strictObject({ type: z.literal('image_url'), image_url: z.looseObject({ url: z.string() }) }),
])
const Content = z.union([z.string(), z.array(Part)])

/** OpenAI's FineTuneChatRequestInput, and one additional field for trainers of open models. */
const Row = z.strictObject({
  messages: z
    .array(
      z.discriminatedUnion('role', [
        z.strictObject({ role: z.literal('system'), content: Content }),
        z.strictObject({ role: z.literal('developer'), content: Content }),
        z.strictObject({ role: z.literal('user'), content: Content }),
        z.strictObject({ role: z.literal('tool'), tool_call_id: z.string(), content: Content }),
        z
          .strictObject({
            role: z.literal('assistant'),
            content: z.string().nullable(),
            reasoning_content: z.string().optional(),
            tool_calls: z
              .array(
                z.strictObject({
                  id: z.string(),
                  type: z.literal('function'),
                  function: z.strictObject({ name: z.string(), arguments: z.string() }),
                }),
              )
              .optional(),
            weight: z.literal([0, 1]),
          })
          .refine(({ content, tool_calls: calls }) => content !== null || calls !== undefined),
      ]),
    )
    .min(1),
  tools: z
    .array(z.looseObject({ type: z.literal('function'), function: z.looseObject({ name: z.string() }) }))
    .optional(),
})
type Row = z.infer<typeof Row>

describeExporter('openai_sft', {
  create: () => exporters.create({ kind: 'openai_sft', reasoning: 'field', content: 'sent', tools: 'list' }, {}),
  read: (file) => readLines(file).map((row) => Row.parse(row)),
  check(records, session) {
    const samples = [...session.samples()]
    expect(records).toHaveLength(samples.length)
    for (const [i, record] of records.entries()) {
      const row = record as Row
      const { prompt, response, tools } = samples[i]!.messages()
      const bare = row.messages.map((message) => {
        if (message.role !== 'assistant') return message
        const { weight: _, ...rest } = message
        return rest
      })
      expect(bare).toEqual([...prompt, ...response])
      expect(row.tools ?? null).toEqual(tools)
      const weights = row.messages.flatMap((message) => (message.role === 'assistant' ? [message.weight] : []))
      const calls = samples[i]!.calls.map(({ isTrained }) => Number(isTrained))
      expect(weights.slice(-calls.length)).toEqual(calls)
      expect(weights.slice(0, -calls.length).every((weight) => weight === 0)).toBe(true)
    }
  },
})

test('content and tools are texts, by the options', () => {
  const exporter = exporters.create({ kind: 'openai_sft', reasoning: 'field', content: 'text', tools: 'json' }, {})
  fc.assert(
    fc.property(anySession(), (session) => {
      const samples = [...session.samples()]
      const rows = readLines(writeFile(exporter, [session])) as { messages: ChatMessage[]; tools?: string }[]
      for (const [i, row] of rows.entries()) {
        const { prompt, response, tools } = samples[i]!.messages()
        expect(row.tools === undefined ? null : JSON.parse(row.tools)).toEqual(tools)
        expect(row.messages.map(({ content }) => content ?? '')).toEqual(
          [...prompt, ...response].map((message) => chatText(toChatMessage(message))),
        )
      }
    }),
    { numRuns: 50 },
  )
})

test('reasoning is written into the text or omitted, by the option', () => {
  const [inText, dropped] = (['text', 'drop'] as const).map((reasoning) =>
    exporters.create({ kind: 'openai_sft', reasoning, content: 'sent', tools: 'list' }, {}),
  )
  fc.assert(
    fc.property(anySession(), (session) => {
      const expected = [...session.samples()].flatMap((sample) =>
        [...sample.messages().prompt, ...sample.messages().response].map(toChatMessage),
      )
      for (const exporter of [inText!, dropped!]) {
        const rows = readLines(writeFile(exporter, [session])).map((row) => Row.parse(row))
        for (const [i, message] of rows.flatMap(({ messages }) => messages).entries()) {
          const thought = chatReasoning(expected[i]!)
          expect(message).not.toHaveProperty('reasoning_content')
          const isThere = exporter === inText && thought !== undefined
          expect(message.content).toEqual(
            isThere
              ? `<think>\n${thought}\n</think>\n\n${(expected[i]!.content as string | null) ?? ''}`
              : expected[i]!.content,
          )
        }
      }
    }),
    { numRuns: 50 },
  )
})
