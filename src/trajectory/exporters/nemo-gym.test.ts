import { expect } from 'vitest'
import * as z from 'zod'
import { chatCalls, chatReasoning, chatText, toChatMessage } from '../../model/chat-message.ts'
import { lacksLogprob } from '../../model/sample-facts.ts'
import { describeExporter, readLines } from './exporter.contract.ts'
import { exporters } from './index.ts'

const tokens = {
  prompt_token_ids: z.array(z.int()).optional(),
  generation_token_ids: z.array(z.int()).min(1).optional(),
  generation_log_probs: z.array(z.number()).min(1).optional(),
}

const Content = z.union([
  z.string(),
  z.array(
    z.discriminatedUnion('type', [
      z.strictObject({ type: z.literal('input_text'), text: z.string() }),
      z.strictObject({ type: z.literal('input_image'), image_url: z.string(), detail: z.string() }),
    ]),
  ),
])

/** The items of NeMo Gym (nemo_gym/openai_utils.py) that we write. */
const Item = z.union([
  z.strictObject({
    type: z.literal('message'),
    role: z.enum(['user', 'system', 'developer']),
    content: Content,
  }),
  z.strictObject({
    type: z.literal('message'),
    role: z.literal('assistant'),
    id: z.string(),
    status: z.literal('completed'),
    content: z.array(
      z.strictObject({ type: z.literal('output_text'), text: z.string(), annotations: z.array(z.never()) }),
    ),
    ...tokens,
  }),
  z.strictObject({
    type: z.literal('function_call'),
    id: z.string(),
    call_id: z.string(),
    name: z.string(),
    arguments: z.string(),
    status: z.literal('completed'),
    ...tokens,
  }),
  z.strictObject({
    type: z.literal('reasoning'),
    id: z.string(),
    summary: z.array(z.strictObject({ type: z.literal('summary_text'), text: z.string() })),
    ...tokens,
  }),
  z.strictObject({ type: z.literal('function_call_output'), call_id: z.string(), output: z.string() }),
])
type Item = z.infer<typeof Item>

const FunctionTool = z.strictObject({
  type: z.literal('function'),
  name: z.string(),
  description: z.string().optional(),
  parameters: z.record(z.string(), z.unknown()).nullable(),
  strict: z.boolean().nullable(),
})

const Result = z.looseObject({
  agent_ref: z.strictObject({ type: z.literal('responses_api_agents'), name: z.string() }),
  responses_create_params: z.strictObject({
    input: z.array(Item),
    tools: z.array(FunctionTool),
    temperature: z.number().optional(),
    top_p: z.number().optional(),
  }),
  response: z.looseObject({
    id: z.string(),
    object: z.literal('response'),
    created_at: z.int(),
    model: z.string(),
    output: z.array(Item),
    tools: z.array(FunctionTool),
  }),
  reward: z.number(),
  _ng_task_index: z.int(),
  _ng_rollout_index: z.int(),
  _ng_rollout_id: z.string().regex(/^[A-Za-z0-9][A-Za-z0-9._-]*$/),
})

/** Contents of a list of items, in order. */
function saidBy(items: readonly Item[]): unknown[] {
  return items.map((item) => {
    switch (item.type) {
      case 'reasoning':
        return ['thinks', item.summary.map(({ text }) => text).join('')]
      case 'function_call':
        return ['calls', item.call_id, item.name, item.arguments]
      case 'function_call_output':
        return ['answers', item.call_id, item.output]
      case 'message':
        return item.role === 'assistant'
          ? ['says', item.content.map(({ text }) => text).join('')]
          : [item.role, contentOf(item.content)]
    }
  })
}

function contentOf(content: z.infer<typeof Content>): unknown {
  if (typeof content === 'string') return content
  return content.map((part) =>
    part.type === 'input_text'
      ? { type: 'text', text: part.text }
      : { type: 'image_url', image_url: { url: part.image_url } },
  )
}

/** Contents of messages in the Chat Completions format, in order. */
function saidIn(messages: readonly unknown[]): unknown[] {
  return messages.map(toChatMessage).flatMap((message): unknown[] => {
    if (message.role === 'tool') return [['answers', message.tool_call_id, chatText(message)]]
    if (message.role !== 'assistant') return [[message.role, message.content]]
    const [thought, text, calls] = [chatReasoning(message), chatText(message), chatCalls(message)]
    return [
      ...(thought === undefined ? [] : [['thinks', thought]]),
      ...(text === '' && calls.length > 0 ? [] : [['says', text]]),
      ...calls.map((call) => ['calls', call.id, call.name, call.arguments]),
    ]
  })
}

describeExporter('nemo_gym', {
  create: () => exporters.create({ kind: 'nemo_gym', agent: 'polar' }, {}),
  read: (file) => readLines(file).map((row) => Result.parse(row)),
  check(records, session) {
    const kept = [...session.samples()].filter((sample) => sample.reward !== undefined && !lacksLogprob(sample))
    expect(records).toHaveLength(kept.length)
    for (const [i, record] of records.entries()) {
      const row = record as z.infer<typeof Result>
      const sample = kept[i]!
      expect(row.reward).toBe(sample.reward)
      const messages = sample.messages()
      expect(saidBy(row.responses_create_params.input)).toEqual(saidIn(messages.prompt))
      expect(saidBy(row.response.output)).toEqual(saidIn(messages.response))
      // As in NeMo RL's reader: every prompt begins with all tokens before it, and all tokens together are the sample.
      const seen: number[] = []
      const mask: number[] = []
      const logprobs: number[] = []
      for (const item of row.response.output) {
        if (!('generation_token_ids' in item) || item.generation_token_ids === undefined) continue
        const { prompt_token_ids: prompt = [], generation_log_probs: sampled = [] } = item
        expect(prompt.slice(0, seen.length)).toEqual(seen)
        mask.push(...prompt.slice(seen.length).map(() => 0), ...item.generation_token_ids.map(() => 1))
        seen.push(...prompt.slice(seen.length), ...item.generation_token_ids)
        logprobs.push(...sampled)
      }
      expect(seen).toEqual([...sample.ids])
      expect(mask).toEqual([...sample.mask])
      expect(logprobs).toEqual([...sample.logprobs].filter((_, at) => sample.mask[at] === 1))
    }
  },
})
