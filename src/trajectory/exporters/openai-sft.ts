import * as z from 'zod'
import type { Plug } from '../../lib/plug.ts'
import { chatReasoning, chatText, type ChatMessage } from '../../model/chat-message.ts'
import type { Sample } from '../../model/sample.ts'
import { isTrainedMessage, sampleMessages } from '../../model/sample-facts.ts'
import { sampleExporter, type Exporter } from './exporter.ts'

const Config = z.strictObject({
  kind: z.literal('openai_sft'),
  reasoning: z
    .enum(['field', 'text', 'drop'])
    .default('field')
    .describe('Reasoning: as reasoning_content, as <think>…</think> before the content, or omitted'),
})
type Config = z.infer<typeof Config>

/**
 * OpenAI's chat fine-tuning rows, one per sample: the conversation and its tools. Every assistant message has a `weight`: 1
 * for answers that this sample trains, 0 for others. OpenAI's service accepts no reasoning: use `reasoning=drop`. Rows have no
 * field for a reward, so select sessions before the export.
 */
export const openaiSft: Plug<typeof Config, object, Exporter> = {
  config: Config,
  create: (config) => sampleExporter('openai_sft', (sample) => toRow(sample, config)),
}

function toRow(sample: Sample, config: Config): Record<string, unknown> {
  const messages = sample.messages()
  return {
    messages: [...sampleMessages(sample, messages)].map((speech) =>
      speech.message.role === 'assistant'
        ? toAssistant(speech.message, isTrainedMessage(speech), config)
        : speech.message,
    ),
    ...(messages.tools === null || messages.tools.length === 0 ? {} : { tools: messages.tools }),
  }
}

function toAssistant(message: ChatMessage, isTrained: boolean, { reasoning: how }: Config): Record<string, unknown> {
  const { reasoning_content: _, reasoning: __, ...bare } = message
  const thought = chatReasoning(message)
  const weight = isTrained ? 1 : 0
  if (thought === undefined || how === 'drop') return { ...bare, weight }
  if (how === 'field') return { ...bare, reasoning_content: thought, weight }
  return { ...bare, content: `<think>\n${thought}\n</think>\n\n${chatText(message)}`, weight }
}
