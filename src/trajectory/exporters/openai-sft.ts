import * as z from 'zod'
import type { Plug } from '../../lib/plug.ts'
import { chatReasoning, chatText, type ChatMessage } from '../../model/chat-message.ts'
import type { Sample } from '../../model/sample.ts'
import { isTrainedMessage, sampleMessages } from '../../model/sample-facts.ts'
import { textExporter, type Exporter } from './exporter.ts'

const Config = z.strictObject({
  kind: z.literal('openai_sft'),
  reasoning: z
    .enum(['field', 'text', 'drop'])
    .default('field')
    .describe('Reasoning: as reasoning_content, as <think>…</think> before the content, or omitted'),
  content: z
    .enum(['sent', 'text'])
    .default('sent')
    .describe('Content of messages: as the harness sent it, or as one text without images'),
  tools: z.enum(['list', 'json']).default('list').describe('Tools: as a list, or as JSON text'),
})
type Config = z.infer<typeof Config>

/**
 * OpenAI's chat fine-tuning rows, one per sample: the conversation and its tools. Every assistant message has a `weight`: 1
 * for answers that this sample trains, 0 for others. OpenAI's service accepts no reasoning: use `reasoning=drop`. Rows have no
 * field for a reward, so select sessions before the export. Readers with one type per column, such as `datasets`, need
 * `content=text` and `tools=json`: harnesses send both texts and lists of parts, and schemas of tools differ in their types.
 */
export const openaiSft: Plug<typeof Config, object, Exporter> = {
  config: Config,
  create: (config) => textExporter('openai_sft', (sample) => toRow(sample, config)),
}

function toRow(sample: Sample, config: Config): Record<string, unknown> {
  const messages = sample.messages()
  return {
    messages: [...sampleMessages(sample, messages)].map((speech) =>
      speech.message.role === 'assistant'
        ? toAssistant(speech.message, isTrainedMessage(speech), config)
        : toContext(speech.message, config),
    ),
    ...(messages.tools === null || messages.tools.length === 0 ? {} : { tools: toTools(messages.tools, config) }),
  }
}

function toContext(message: ChatMessage, { content: how }: Config): ChatMessage {
  return how === 'sent' || message.content == null ? message : { ...message, content: chatText(message) }
}

function toTools(tools: readonly unknown[], { tools: how }: Config): unknown {
  return how === 'list' ? tools : JSON.stringify(tools)
}

function toAssistant(message: ChatMessage, isTrained: boolean, config: Config): Record<string, unknown> {
  const { reasoning: how } = config
  const { reasoning_content: _, reasoning: __, ...bare } = toContext(message, config)
  const thought = chatReasoning(message)
  const weight = isTrained ? 1 : 0
  if (thought === undefined || how === 'drop') return { ...bare, weight }
  if (how === 'field') return { ...bare, reasoning_content: thought, weight }
  return { ...bare, content: `<think>\n${thought}\n</think>\n\n${chatText(message)}`, weight }
}
