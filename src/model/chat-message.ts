/** A message in Chat Completions format, as samples contain it. Unknown fields are kept. */
export interface ChatMessage {
  role: string
  content?: unknown
  tool_calls?: unknown
  tool_call_id?: unknown
  [field: string]: unknown
}

export interface ChatCall {
  id: string
  name: string
  /** Exact text, valid JSON or not. */
  arguments: string
}

export type ChatPart =
  | { type: 'text'; text: string }
  | { type: 'image'; url: string; detail?: string }
  /** Unchanged part. */
  | { type: 'other'; wire: unknown }

type WireObject = Readonly<Record<string, unknown>>

/** Converts any value to a message. The default role is `user`. */
export function toChatMessage(value: unknown): ChatMessage {
  const message = asObject(value)
  return { ...message, role: typeof message['role'] === 'string' ? message['role'] : 'user' }
}

export function chatParts(content: unknown): ChatPart[] {
  if (content == null) return []
  if (typeof content === 'string') return [{ type: 'text', text: content }]
  return (Array.isArray(content) ? content : [content]).map(toPart)
}

function toPart(wire: unknown): ChatPart {
  const part = asObject(wire)
  if (typeof wire === 'string') return { type: 'text', text: wire }
  if (typeof part['text'] === 'string') return { type: 'text', text: part['text'] }
  const image = part['image_url']
  const url = typeof image === 'string' ? image : asObject(image)['url']
  if (typeof url !== 'string') return { type: 'other', wire }
  const detail = asObject(image)['detail']
  return { type: 'image', url, detail: typeof detail === 'string' ? detail : undefined }
}

/** Returns the text of a message without other parts. */
export function chatText({ content }: ChatMessage): string {
  return chatParts(content)
    .map((part) => (part.type === 'text' ? part.text : ''))
    .join('')
}

/** Returns the reasoning under either field name of engines; undefined if there is none. */
export function chatReasoning(message: ChatMessage): string | undefined {
  const reasoning = message['reasoning_content'] ?? message['reasoning']
  return typeof reasoning === 'string' ? reasoning : undefined
}

export function chatCalls({ tool_calls: calls }: ChatMessage): ChatCall[] {
  if (!Array.isArray(calls)) return []
  return calls.map((call: unknown) => {
    const { id, function: called } = asObject(call)
    const { name, arguments: given } = asObject(called)
    return {
      id: asText(id),
      name: asText(name),
      arguments: typeof given === 'string' ? given : JSON.stringify(given ?? {}),
    }
  })
}

/** Returns the id of the call that a tool message answers; undefined if it has none. */
export function answeredCall({ tool_call_id: id }: ChatMessage): string | undefined {
  return typeof id === 'string' ? id : undefined
}

function asObject(value: unknown): WireObject {
  return typeof value === 'object' && value !== null ? (value as WireObject) : {}
}

function asText(value: unknown): string {
  return typeof value === 'string' ? value : ''
}
