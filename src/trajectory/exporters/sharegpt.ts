import * as z from 'zod'
import { parseJsonObject } from '../../lib/json/json-text.ts'
import type { Plug } from '../../lib/plug.ts'
import {
  chatCalls,
  chatParts,
  chatReasoning,
  chatText,
  type ChatCall,
  type ChatMessage,
} from '../../model/chat-message.ts'
import type { Sample } from '../../model/sample.ts'
import { isTrainedMessage, sampleMessages } from '../../model/sample-facts.ts'
import { textExporter, type Exporter } from './exporter.ts'

const Config = z.strictObject({
  kind: z.literal('sharegpt'),
  reasoning: z
    .enum(['text', 'drop'])
    .default('text')
    .describe('Reasoning: as <think>…</think> before the value, or omitted'),
})
type Config = z.infer<typeof Config>

/**
 * ShareGPT rows, one per sample, as LLaMA-Factory reads them. Input and answers must alternate, so consecutive input messages
 * are joined. Answers have a `weight`: 1 if this sample trains them, else 0. LLaMA-Factory ignores `weight` and trains every
 * answer, or with `mask_history` the last one. Rows that LLaMA-Factory rejects are left out: rows that begin with an answer,
 * and rows with a text beside a tool call that looks like a tool call. Rows have no field for a reward, so select sessions
 * before the export.
 */
export const sharegpt: Plug<typeof Config, object, Exporter> = {
  config: Config,
  create: (config) => textExporter('sharegpt', (sample) => toRow(sample, config)),
}

type Input = 'human' | 'observation'
type Answer = 'gpt' | 'function_call'
interface Entry {
  from: Input | Answer
  value: string
  weight?: 0 | 1
}

function toRow(sample: Sample, config: Config): Record<string, unknown> | undefined {
  const messages = sample.messages()
  const system: string[] = []
  const images: string[] = []
  const conversations: Entry[] = []
  for (const speech of sampleMessages(sample, messages)) {
    const { message } = speech
    const isSystem = message.role === 'system' || message.role === 'developer'
    if (isSystem && conversations.length === 0) {
      system.push(chatText(message))
      continue
    }
    if (message.role !== 'assistant') {
      images.push(...chatParts(message.content).flatMap((part) => (part.type === 'image' ? [part.url] : [])))
      addInput(conversations, {
        from: message.role === 'tool' ? 'observation' : 'human',
        value: withPlaceholders(message),
      })
      continue
    }
    const entry = toAnswer(message, config)
    if (entry === undefined || conversations.length === 0 || isAnswer(conversations.at(-1)?.from)) return undefined
    conversations.push({ ...entry, weight: isTrainedMessage(speech) ? 1 : 0 })
  }
  return {
    conversations,
    system: system.join('\n\n'),
    tools: messages.tools === null || messages.tools.length === 0 ? '' : JSON.stringify(messages.tools),
    images,
  }
}

function isAnswer(from: Entry['from'] | undefined): boolean {
  return from === 'gpt' || from === 'function_call'
}

/** LLaMA-Factory's separator of several tool results in one turn. */
const BETWEEN_RESULTS = '\n</tool_response>\n<tool_response>\n'

function addInput(conversations: Entry[], entry: Entry): void {
  const last = conversations.at(-1)
  if (last === undefined || isAnswer(last.from)) {
    conversations.push(entry)
    return
  }
  const both = last.from === 'observation' && entry.from === 'observation'
  last.value += (both ? BETWEEN_RESULTS : '\n\n') + entry.value
  if (entry.from === 'observation') last.from = 'observation'
}

/** Replaces images, which are in a separate list, by placeholders. */
function withPlaceholders({ content }: ChatMessage): string {
  return chatParts(content)
    .map((part) => (part.type === 'text' ? part.text : part.type === 'image' ? '<image>' : JSON.stringify(part.wire)))
    .join('')
}

// --- answers ----------------------------------------------------------------------------------------------------------

/** Undefined if the text beside a tool call contains the mark of a tool call. */
function toAnswer(message: ChatMessage, { reasoning: how }: Config): Entry | undefined {
  const reasoning = how === 'drop' ? undefined : chatReasoning(message)
  const thought = reasoning === undefined ? '' : `<think>\n${reasoning}\n</think>\n\n`
  const calls = chatCalls(message)
  const text = thought + chatText(message)
  if (calls.length === 0) return { from: 'gpt', value: text }
  const json = calls.length === 1 ? calls.map(toCallJson).join('') : `[${calls.map(toCallJson).join(', ')}]`
  if (text === '') return { from: 'function_call', value: json }
  if (text.includes('<tool_call>')) return undefined
  return { from: 'function_call', value: `${text}<tool_call>${json}</tool_call>` }
}

/**
 * Writes arguments as the sampled text if that is a JSON object, otherwise as a JSON string. Escapes the marks that would end
 * the call, which does not change the JSON value.
 */
function toCallJson({ name, arguments: given }: ChatCall): string {
  const json = `{"name": ${JSON.stringify(name)}, "arguments": ${parseJsonObject(given) !== undefined ? given : JSON.stringify(given)}}`
  return json.replace(/<(?=\/?(?:tool_call|think)>)/g, '\\u003c')
}
