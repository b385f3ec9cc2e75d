import * as z from 'zod'

/**
 * One message of a conversation in our own words: what dialects parse into and render from. Text is kept exactly; tool
 * arguments stay the string that was sampled, because parsing and printing them again changes bytes.
 */
export const ContentPart = z.discriminatedUnion('type', [
  z.object({ type: z.literal('text'), text: z.string() }),
  /** `url` is a data URL or one the engine can fetch. */
  z.object({ type: z.literal('image'), url: z.string(), detail: z.string().optional() }),
  /** A part we have no word for, as it came; a dialect of the same wire puts it back. */
  z.object({ type: z.literal('other'), wire: z.unknown() }),
])
export type ContentPart = z.infer<typeof ContentPart>

export const ToolCall = z.object({ id: z.string(), name: z.string(), arguments: z.string() })
export type ToolCall = z.infer<typeof ToolCall>

export const AssistantMessage = z.object({
  role: z.literal('assistant'),
  content: z.array(ContentPart),
  /** Thinking, where the engine separates it; absent means none was sampled or none was sent back. */
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
    /** The harness says the tool failed; absent where its API cannot say. */
    isError: z.boolean().optional(),
  }),
])
export type Message = z.infer<typeof Message>

export const Tool = z.object({
  /** As the engine is told it; a dialect that had to rename it knows the way back. */
  name: z.string(),
  description: z.string().optional(),
  /** JSON Schema of the arguments; absent means a tool without any. */
  parameters: z.unknown().optional(),
  strict: z.boolean().optional(),
})
export type Tool = z.infer<typeof Tool>

/** Whether and which tool the model must call. */
export const ToolChoice = z.union([z.enum(['auto', 'none', 'required']), z.object({ name: z.string() })])
export type ToolChoice = z.infer<typeof ToolChoice>

/** All text of a message, other parts left out. */
export function textOf(message: { content: readonly ContentPart[] }): string {
  return message.content.map((part) => (part.type === 'text' ? part.text : '')).join('')
}

/** The size of a message: characters of its text, media, reasoning and tool calls. */
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
