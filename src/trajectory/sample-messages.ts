import { hasIdsAt } from '../lib/net/token-hash.ts'
import { chatCalls, chatReasoning, chatText, toChatMessage } from '../model/chat-message.ts'
import { textOf, type AssistantMessage } from '../model/message.ts'
import type { SampleMessages } from '../model/sample.ts'
import type { Part, Row } from './builders/builder.ts'
import type { CallNode, RequestReader } from './graph/call-graph.ts'

/**
 * Returns the messages of a row in Chat Completions format: the request of the last call, then its answer. The sampled answer
 * replaces an assistant message that repeats a call of the row. Every other message stays as the harness sent it.
 */
export function messagesOf(row: Row, reader: RequestReader): SampleMessages {
  const calls = row.parts.filter((part) => part.isSampled).map(({ call }) => call)
  const [first, last] = [calls[0] as CallNode, calls.at(-1) as CallNode]
  const { messages: prompt, tools } = reader.readPrompt(first.turn)
  if (first === last) return { prompt, response: [answerOf(first)], answers: [0], tools }
  const earlier = calls.slice(0, -1)
  const { messages } = reader.readPrompt(last.turn)
  const slots =
    placeEchoes(messages, earlier, prompt.length, reader) ??
    placeByRequest(messages, earlier, isLiteral(row.parts, last), reader)
  // The harness may have joined the answer of the first call to an assistant message that its request ended with.
  const isJoined = (slots[prompt.length - 1]?.calls.length ?? 0) > 0
  const promptLength = isJoined ? prompt.length - 1 : prompt.length
  const response: Slot[] = [...slots.slice(promptLength), { message: answerOf(last), calls: [last] }]
  const positions = new Map<CallNode, number>()
  for (const [position, slot] of response.entries()) {
    for (const call of slot.calls) if (!positions.has(call)) positions.set(call, position)
  }
  return {
    prompt: prompt.slice(0, promptLength),
    response: response.map(({ message }) => message),
    answers: calls.map((call) => positions.get(call) ?? -1),
    tools,
  }
}

/** A message and the calls of the row whose answers it contains: none for context, several for joined answers. */
interface Slot {
  message: unknown
  calls: readonly CallNode[]
}

/** Handles the common case: the prompt is followed by one echo per call, in order. */
function placeEchoes(
  messages: readonly unknown[],
  calls: readonly CallNode[],
  from: number,
  reader: RequestReader,
): Slot[] | undefined {
  const left = [...calls]
  const slots: Slot[] = []
  for (const [at, message] of messages.entries()) {
    const call = at < from || !isAssistant(message) ? undefined : left.shift()
    if (call === undefined && at >= from && isAssistant(message)) return undefined
    if (call !== undefined && !isEchoOf(message, call)) return undefined
    slots.push(call === undefined ? { message, calls: [] } : { message: answerOf(call, message), calls: [call] })
  }
  return left.length > 0 || calls.some((call) => isPrefilled(call, reader)) ? undefined : slots
}

/**
 * Whether the request of the call ends with an assistant message. The harness then joins the answer to that message. Only the
 * request shows it: the row may lack the call that sampled the beginning, and the joined message may have the text of another
 * answer.
 */
function isPrefilled({ turn }: CallNode, reader: RequestReader): boolean {
  return reader.readRequest(turn)?.messages.at(-1)?.role === 'assistant'
}

/** Finds each echo behind the messages of its call's request, which every later request repeats. */
function placeByRequest(
  messages: readonly unknown[],
  calls: readonly CallNode[],
  isLiteralRow: boolean,
  reader: RequestReader,
): Slot[] {
  const slots: Slot[] = messages.map((message) => ({ message, calls: [] }))
  // Backwards: inserting an answer moves only the messages behind it.
  for (const call of calls.toReversed()) {
    const request = reader.readPrompt(call.turn).messages
    const at = Math.min(request.length, messages.length)
    const [echo, open] = [slots[at], slots[at - 1]]
    if (at < messages.length && echo !== undefined && isAssistant(messages[at])) {
      slots.splice(at, 1, ...fill(echo, call, isLiteralRow))
    } else if (open !== undefined && isAssistant(request.at(-1)) && isAssistant(messages[at - 1])) {
      // The request was for the rest of an assistant message, and the harness joined both.
      slots[at - 1] = { ...open, calls: [call, ...open.calls] }
    } else {
      slots.splice(at, 0, { message: answerOf(call), calls: [call] })
    }
  }
  return slots
}

/** Returns the slots for an assistant message at the position of the answer of `call`. */
function fill(slot: Slot, call: CallNode, isLiteralRow: boolean): Slot[] {
  const isFree = slot.calls.length === 0
  const answer = { message: answerOf(call, slot.message), calls: [call] }
  if (isFree && (isLiteralRow ? isEchoOf(slot.message, call) : hasSameTools(slot.message, call))) return [answer]
  // The message contains the answer and more: the engine read more, or a later call resumed the answer.
  if (isLiteralRow || !isFree) return [{ ...slot, calls: [call, ...slot.calls] }]
  // The harness continued with another message instead of this answer; tool results may refer to that message.
  return [answer, slot]
}

/** Whether the tokens before the answer of `last` equal its prompt. */
function isLiteral(parts: readonly Part[], last: CallNode): boolean {
  let at = 0
  for (const { ids, call, isSampled } of parts) {
    if (isSampled && call === last) break
    if (!hasIdsAt(last.response.promptIds, at, ids)) return false
    at += ids.length
  }
  return at === last.response.promptIds.length
}

/** Ignores what harnesses change: white space around the text, the format of arguments, omitted reasoning. */
function isEchoOf(message: unknown, call: CallNode): boolean {
  const sent = toChatMessage(message)
  const reasoning = chatReasoning(sent)?.trim() ?? ''
  return (
    chatText(sent).trim() === textOf(call.choice.message).trim() &&
    (reasoning === '' || reasoning === call.choice.message.reasoning?.trim()) &&
    hasSameTools(sent, call)
  )
}

function hasSameTools(message: unknown, { choice }: CallNode): boolean {
  const [sent, sampled] = [chatCalls(toChatMessage(message)), choice.message.toolCalls]
  return sent.length === sampled.length && sent.every(({ name }, i) => name === sampled[i]?.name)
}

function isAssistant(message: unknown): boolean {
  return toChatMessage(message).role === 'assistant'
}

/** Tool calls get the ids of `echo`, if any: a harness may change the ids, and tool results refer to the new ids. */
function answerOf({ choice }: CallNode, echo?: unknown): Record<string, unknown> {
  const ids = echo === undefined ? [] : chatCalls(toChatMessage(echo)).map(({ id }) => id)
  const { toolCalls } = choice.message
  if (ids.length !== toolCalls.length) return chatMessageOf(choice.message)
  return chatMessageOf({
    ...choice.message,
    toolCalls: toolCalls.map((call, i) => ({ ...call, id: ids[i] || call.id })),
  })
}

/** Returns an assistant message in Chat Completions format, with reasoning under the engines' field name. */
export function chatMessageOf(message: AssistantMessage): Record<string, unknown> {
  const text = textOf(message)
  return {
    role: 'assistant',
    content: text === '' && message.toolCalls.length > 0 ? null : text,
    ...(message.reasoning === undefined ? {} : { reasoning_content: message.reasoning }),
    ...(message.toolCalls.length === 0
      ? {}
      : {
          tool_calls: message.toolCalls.map((call) => ({
            id: call.id,
            type: 'function',
            function: { name: call.name, arguments: call.arguments },
          })),
        }),
  }
}
