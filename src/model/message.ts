import * as z from 'zod'

/**
 * Content of a normalised message, which dialects parse into and render from. Text is exact. Tool arguments stay the sampled
 * string, because parsing and serializing them changes bytes.
 */
export const ContentPart = z.discriminatedUnion('type', [
  z.object({ type: z.literal('text'), text: z.string() }),
  /** `url` is a data URL or a URL that the engine can fetch. */
  z.object({ type: z.literal('image'), url: z.string(), detail: z.string().optional() }),
  /** An unknown part, unchanged. A dialect of the same wire format renders it again. */
  z.object({ type: z.literal('other'), wire: z.unknown() }),
])
export type ContentPart = z.infer<typeof ContentPart>

export const ToolCall = z.object({ id: z.string(), name: z.string(), arguments: z.string() })
export type ToolCall = z.infer<typeof ToolCall>

export const AssistantMessage = z.object({
  role: z.literal('assistant'),
  content: z.array(ContentPart),
  /** Reasoning, if the engine separates it; absent: none was sampled, or the harness omitted it. */
  reasoning: z.string().optional(),
  toolCalls: z.array(ToolCall),
})
export type AssistantMessage = z.infer<typeof AssistantMessage>

export const Message = z.discriminatedUnion('role', [
  z.object({ role: z.literal('system'), content: z.array(ContentPart) }),
  z.object({ role: z.literal('developer'), content: z.array(ContentPart) }),
  z.object({ role: z.literal('user'), content: z.array(ContentPart) }),
  AssistantMessage,
  z.object({
    role: z.literal('tool'),
    toolCallId: z.string(),
    content: z.array(ContentPart),
    /** Whether the harness reported a failure of the tool; absent if its API cannot express that. */
    isError: z.boolean().optional(),
  }),
])
export type Message = z.infer<typeof Message>

export const Tool = z.object({
  /** Name for the engine. A dialect that renames a tool also restores its name. */
  name: z.string(),
  description: z.string().optional(),
  /** JSON Schema of the arguments; absent: no arguments. */
  parameters: z.unknown().optional(),
  strict: z.boolean().optional(),
})
export type Tool = z.infer<typeof Tool>

/** Whether the model may or must call a tool, and which. */
export const ToolChoice = z.union([z.enum(['auto', 'none', 'required']), z.object({ name: z.string() })])
export type ToolChoice = z.infer<typeof ToolChoice>

/** Returns the text of a message without other parts. */
export function textOf(message: { content: readonly ContentPart[] }): string {
  return message.content.map((part) => (part.type === 'text' ? part.text : '')).join('')
}

/** Returns the size of a message in characters: text, media, reasoning and tool calls. */
export function charactersOf(message: Message): number {
  const parts = message.content.map((part) => {
    if (part.type === 'text') return part.text.length
    return part.type === 'image' ? part.url.length : JSON.stringify(part.wire)?.length
  })
  if (message.role !== 'assistant') return sum(parts)
  const calls = message.toolCalls.map((call) => call.id.length + call.name.length + call.arguments.length)
  return sum([...parts, ...calls, message.reasoning?.length])
}

function sum(lengths: readonly (number | undefined)[]): number {
  return lengths.reduce<number>((total, length) => total + (length ?? 0), 0)
}
