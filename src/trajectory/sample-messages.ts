import { hasIdsAt } from '../lib/net/token-hash.ts'
import { chatCalls, chatReasoning, chatText, toChatMessage } from '../model/chat-message.ts'
import { textOf, type AssistantMessage } from '../model/message.ts'
import type { SampleMessages } from '../model/sample.ts'
import type { Part, Row } from './builders/builder.ts'
import type { CallNode, RequestReader } from './graph/call-graph.ts'

/**
 * The messages of a row in Chat Completions' form: the request of the last call, then its answer. An assistant message that
 * is the echo of a call of the row is replaced by the answer as it was sampled. Every other message stands as the harness
 * sent it.
 */
export function messagesOf(row: Row, reader: RequestReader): SampleMessages {
  const calls = row.parts.filter((part) => part.isSampled).map(({ call }) => call)
  const [first, last] = [calls[0] as CallNode, calls.at(-1) as CallNode]
  const { messages: prompt, tools } = reader.readPrompt(first.turn)
  if (first === last) return { prompt, response: [answerOf(first)], answers: [0], tools }
  const earlier = calls.slice(0, -1)
  const { messages } = reader.readPrompt(last.turn)
  const slots =
    (mayBeJoined(row.parts) ? undefined : placeEchoes(messages, earlier, prompt.length)) ??
    placeByRequest(messages, earlier, isLiteral(row.parts, last), reader)
  // The harness may have joined the answer of the first call to an assistant message that its request ended with.
  const isJoined = (slots[prompt.length - 1]?.calls.length ?? 0) > 0
  const promptLength = isJoined ? prompt.length - 1 : prompt.length
  const response: Slot[] = [...slots.slice(promptLength), { message: answerOf(last), calls: [last] }]
  const places = new Map<CallNode, number>()
  for (const [place, slot] of response.entries()) {
    for (const call of slot.calls) if (!places.has(call)) places.set(call, place)
  }
  return {
    prompt: prompt.slice(0, promptLength),
    response: response.map(({ message }) => message),
    answers: calls.map((call) => places.get(call) ?? -1),
    tools,
  }
}

/** A message, and the calls of the row whose answers it holds: none for context, several for answers that were joined. */
interface Slot {
  message: unknown
  calls: readonly CallNode[]
}

/** Whether one message may hold the answers of two calls: the second call went on from an answer that was not closed. */
function mayBeJoined(parts: readonly Part[]): boolean {
  return parts.some(
    ({ isSampled, call }, i) =>
      isSampled && (call.choice.finishReason === 'length' || parts[i + 1]?.isSampled === true),
  )
}

/** The common case, told without reading the other requests: behind the prompt stands one echo for each call, in order. */
function placeEchoes(messages: readonly unknown[], calls: readonly CallNode[], from: number): Slot[] | undefined {
  const left = [...calls]
  const slots: Slot[] = []
  for (const [at, message] of messages.entries()) {
    const call = at < from || !isAssistant(message) ? undefined : left.shift()
    if (call === undefined && at >= from && isAssistant(message)) return undefined
    if (call !== undefined && !isEchoOf(message, call)) return undefined
    slots.push(call === undefined ? { message, calls: [] } : { message: answerOf(call, message), calls: [call] })
  }
  return left.length === 0 ? slots : undefined
}

/** The echo of an answer stands behind the messages of its own request, which every later request repeats. */
function placeByRequest(
  messages: readonly unknown[],
  calls: readonly CallNode[],
  isLiteralRow: boolean,
  reader: RequestReader,
): Slot[] {
  const slots: Slot[] = messages.map((message) => ({ message, calls: [] }))
  // Backwards, because an answer that is added moves only the messages behind it.
  for (const call of calls.toReversed()) {
    const request = reader.readPrompt(call.turn).messages
    const at = Math.min(request.length, messages.length)
    const [echo, open] = [slots[at], slots[at - 1]]
    if (at < messages.length && echo !== undefined && isAssistant(messages[at])) {
      slots.splice(at, 1, ...fill(echo, call, isLiteralRow))
    } else if (open !== undefined && isAssistant(request.at(-1)) && isAssistant(messages[at - 1])) {
      // The request asked for the rest of an assistant message, and the harness joined the two.
      slots[at - 1] = { ...open, calls: [call, ...open.calls] }
    } else {
      slots.splice(at, 0, { message: answerOf(call), calls: [call] })
    }
  }
  return slots
}

/** The slot of an assistant message that stands where the answer of `call` belongs. */
function fill(slot: Slot, call: CallNode, isLiteralRow: boolean): Slot[] {
  const isFree = slot.calls.length === 0
  const answer = { message: answerOf(call, slot.message), calls: [call] }
  if (isFree && (isLiteralRow ? isEchoOf(slot.message, call) : hasSameTools(slot.message, call))) return [answer]
  // The message holds the answer and more: the engine read more, or a later call resumed the answer.
  if (isLiteralRow || !isFree) return [{ ...slot, calls: [call, ...slot.calls] }]
  // The harness went on from another message than this answer; tool results may refer to it.
  return [answer, slot]
}

/** Whether the tokens before the answer of `last` are what the engine read for it. */
function isLiteral(parts: readonly Part[], last: CallNode): boolean {
  let at = 0
  for (const { ids, call, isSampled } of parts) {
    if (isSampled && call === last) break
    if (!hasIdsAt(last.response.promptIds, at, ids)) return false
    at += ids.length
  }
  return at === last.response.promptIds.length
}

/** Harnesses trim texts, print arguments anew and leave out reasoning. */
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

/** Tool calls keep the ids of `echo`, if any: a harness may rename them, and tool results refer to the new names. */
function answerOf({ choice }: CallNode, echo?: unknown): Record<string, unknown> {
  const ids = echo === undefined ? [] : chatCalls(toChatMessage(echo)).map(({ id }) => id)
  const { toolCalls } = choice.message
  if (ids.length !== toolCalls.length) return chatMessageOf(choice.message)
  return chatMessageOf({
    ...choice.message,
    toolCalls: toolCalls.map((call, i) => ({ ...call, id: ids[i] || call.id })),
  })
}

/** An assistant turn as Chat Completions writes it; reasoning under the name engines use. */
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
