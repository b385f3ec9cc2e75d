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
import { isTrainedSpeech, speechOf } from '../../model/sample-facts.ts'
import { lineWriter, type Exporter } from './exporter.ts'

const Config = z.strictObject({
  kind: z.literal('sharegpt'),
  reasoning: z
    .enum(['text', 'drop'])
    .default('text')
    .describe('Thinking: as <think>…</think> in front of the value, or left out'),
})
type Config = z.infer<typeof Config>

/**
 * ShareGPT rows, one a sample, as LLaMA-Factory reads them: what is told to the model and what it says take turns, so
 * neighbours on one side are joined. Answers have a `weight`, 1 where they are trained in this sample and 0 elsewhere;
 * LLaMA-Factory does not read it and trains every answer, or with `mask_history` the last one. Rows it would refuse are
 * left out: those that begin with an answer, and those whose text beside a tool call looks like another one. Rewards have
 * no place in a row; choose what is worth imitating before.
 */
export const sharegpt: Plug<typeof Config, object, Exporter> = {
  config: Config,
  create: (config) => ({
    name: 'sharegpt',
    extension: 'jsonl',
    isAppendable: true,
    open: () =>
      lineWriter(function* (session) {
        for (const sample of session.samples()) {
          const row = toRow(sample, config)
          if (row !== undefined) yield row
        }
      }),
  }),
}

type Told = 'human' | 'observation'
type Said = 'gpt' | 'function_call'
interface Entry {
  from: Told | Said
  value: string
  weight?: 0 | 1
}

function toRow(sample: Sample, config: Config): Record<string, unknown> | undefined {
  const messages = sample.messages()
  const system: string[] = []
  const images: string[] = []
  const conversations: Entry[] = []
  for (const speech of speechOf(sample, messages)) {
    const { message } = speech
    const isSystem = message.role === 'system' || message.role === 'developer'
    if (isSystem && conversations.length === 0) {
      system.push(chatText(message))
      continue
    }
    if (message.role !== 'assistant') {
      images.push(...chatParts(message.content).flatMap((part) => (part.type === 'image' ? [part.url] : [])))
      tell(conversations, { from: message.role === 'tool' ? 'observation' : 'human', value: withPlaceholders(message) })
      continue
    }
    const entry = toAnswer(message, config)
    if (entry === undefined || conversations.length === 0 || isSaid(conversations.at(-1)?.from)) return undefined
    conversations.push({ ...entry, weight: isTrainedSpeech(speech) ? 1 : 0 })
  }
  return {
    conversations,
    system: system.join('\n\n'),
    tools: messages.tools === null || messages.tools.length === 0 ? '' : JSON.stringify(messages.tools),
    images,
  }
}

function isSaid(from: Entry['from'] | undefined): boolean {
  return from === 'gpt' || from === 'function_call'
}

/** LLaMA-Factory's own way to put several tool results into one turn. */
const BETWEEN_RESULTS = '\n</tool_response>\n<tool_response>\n'

function tell(conversations: Entry[], entry: Entry): void {
  const last = conversations.at(-1)
  if (last === undefined || isSaid(last.from)) {
    conversations.push(entry)
    return
  }
  const both = last.from === 'observation' && entry.from === 'observation'
  last.value += (both ? BETWEEN_RESULTS : '\n\n') + entry.value
  if (entry.from === 'observation') last.from = 'observation'
}

/** Images stand in a list of their own, each with its place in the text. */
function withPlaceholders({ content }: ChatMessage): string {
  return chatParts(content)
    .map((part) => (part.type === 'text' ? part.text : part.type === 'image' ? '<image>' : JSON.stringify(part.wire)))
    .join('')
}

// --- answers ----------------------------------------------------------------------------------------------------------

/** Undefined where the text beside a call would be taken for the call. */
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
 * Arguments stand as the very text that was sampled where that is a JSON object, otherwise as a JSON string of it. Only
 * the marks that would end the call are escaped, which JSON reads as the same.
 */
function toCallJson({ name, arguments: given }: ChatCall): string {
  const json = `{"name": ${JSON.stringify(name)}, "arguments": ${parseJsonObject(given) !== undefined ? given : JSON.stringify(given)}}`
  return json.replace(/<(?=\/?(?:tool_call|think)>)/g, '\\u003c')
}
