import assert from 'node:assert/strict'
import type { Choice, Turn } from '../../src/model/turn.ts'

/**
 * Computes the expected messages of a sample from the recorded Chat Completions requests alone: the messages that the harness
 * sent in the last call of the sample, then the answer of that call. Calls no code that builds or exports samples.
 */

export interface WireMessage {
  role: string
  content?: unknown
  reasoning_content?: unknown
  tool_calls?: { id: string; function: { name: string; arguments: string } }[]
  tool_call_id?: string
}

/** One recorded call of a sample, and whether the sample marks it as trained. */
export interface RowCall {
  turn: Turn
  choice: Choice
  isTrained: boolean
}

/** One expected message of a sample. */
export interface ExpectedMessage {
  message: WireMessage
  /** The calls whose answer it is. Empty for messages that the policy did not sample in this sample. */
  calls: readonly RowCall[]
}

export interface RecordedRequest {
  messages: WireMessage[]
  tools?: unknown[]
}

export function requestOf({ turn }: Pick<RowCall, 'turn'>): RecordedRequest {
  return JSON.parse(turn.request) as RecordedRequest
}

/** For samples whose tokens are the prompt of the last call: one message for each sent message. */
export function expectedMessages(calls: readonly RowCall[]): ExpectedMessage[] {
  return eachSent(calls, (message, own, isWhole) => {
    const [only] = own
    const isEcho = isWhole && only !== undefined && saysTheSame(message, answerOf(only))
    return [{ message: isEcho ? answerOf(only, message) : message, calls: own }]
  })
}

/**
 * For samples that may contain an answer that the harness did not continue (splice): the answer precedes the message that
 * the harness sent instead. If both call the same tools, the answer replaces the message.
 */
export function expectedSplicedMessages(calls: readonly RowCall[]): ExpectedMessage[] {
  return eachSent(calls, (message, own, isWhole) => {
    const [only] = own
    if (!isWhole || only === undefined) return [{ message, calls: own }]
    const isSame = toolNames(message).join() === toolNames(answerOf(only)).join()
    const answer = { message: answerOf(only, message), calls: own }
    return isSame ? [answer] : [answer, { message, calls: [] }]
  })
}

/** `isWhole`: the message is at the position of its only call's answer. */
function eachSent(
  calls: readonly RowCall[],
  toExpected: (message: WireMessage, own: readonly RowCall[], isWhole: boolean) => ExpectedMessage[],
): ExpectedMessage[] {
  const last = calls.at(-1) ?? assert.fail('a sample without calls')
  const sent = requestOf(last).messages.map(withReadableArguments)
  const answered = new Map<number, RowCall[]>()
  for (const call of calls.slice(0, -1)) {
    const at = placeOf(call, sent)
    answered.set(at, [...(answered.get(at) ?? []), call])
  }
  return [
    ...sent.flatMap((message, at) => {
      const own = answered.get(at) ?? []
      const isWhole = own.length === 1 && own.every((call) => requestOf(call).messages.length === at)
      return toExpected(message, own, isWhole)
    }),
    { message: answerOf(last), calls: [last] },
  ]
}

/** Every answer follows the messages of its request; a resumed assistant message occurs only once. */
function placeOf(call: RowCall, sent: readonly WireMessage[]): number {
  const { messages } = requestOf(call)
  const behind = messages.length
  if (sent[behind]?.role === 'assistant') return behind
  assert.equal(messages.at(-1)?.role, 'assistant', `the answer of ${call.turn.id} is not in the last request`)
  assert.equal(sent[behind - 1]?.role, 'assistant', `the answer of ${call.turn.id} is not in the last request`)
  return behind - 1
}

/** Harnesses trim texts, re-print arguments and omit reasoning; any other difference is another message. */
function saysTheSame(echo: WireMessage, answer: WireMessage): boolean {
  const { reasoning_content: thought } = echo
  return (
    textOf(echo).trim() === textOf(answer).trim() &&
    toolNames(echo).join() === toolNames(answer).join() &&
    (typeof thought !== 'string' || thought === '' || thought === answer.reasoning_content)
  )
}

export function textOf({ content }: WireMessage): string {
  if (typeof content === 'string') return content
  return Array.isArray(content) ? content.map((part: { text?: string }) => part.text ?? '').join('') : ''
}

function toolNames({ tool_calls: calls = [] }: WireMessage): string[] {
  return calls.map((call) => call.function.name)
}

/** The sampled message, with the harness's ids of tool calls. */
function answerOf({ choice: { message } }: RowCall, echo?: WireMessage): WireMessage {
  const text = message.content.map((part) => (part.type === 'text' ? part.text : '')).join('')
  const ids = echo?.tool_calls?.length === message.toolCalls.length ? echo.tool_calls.map(({ id }) => id) : []
  return {
    role: 'assistant',
    content: text === '' && message.toolCalls.length > 0 ? null : text,
    ...(message.reasoning === undefined ? {} : { reasoning_content: message.reasoning }),
    ...(message.toolCalls.length === 0
      ? {}
      : {
          tool_calls: message.toolCalls.map((call, i) => ({
            id: ids[i] ?? call.id,
            type: 'function',
            function: { name: call.name, arguments: call.arguments },
          })),
        }),
  }
}

/** Engines reject a history with arguments that are not JSON, so the gateway sends them as one JSON string. */
function withReadableArguments(message: WireMessage): WireMessage {
  if (message.tool_calls === undefined) return message
  const calls = message.tool_calls.map((call) => {
    const { arguments: text } = call.function
    return { ...call, function: { ...call.function, arguments: isJson(text) ? text : JSON.stringify(text) } }
  })
  return { ...message, tool_calls: calls }
}

export function isJson(text: string): boolean {
  try {
    JSON.parse(text)
    return true
  } catch {
    return false
  }
}

/** Throws unless every tool result follows the assistant message that called the tool. */
export function assertCallsBeforeResults(messages: readonly WireMessage[], where: string): void {
  const asked = new Set<string>()
  for (const [at, { role, tool_calls: calls = [], tool_call_id: id }] of messages.entries()) {
    for (const call of calls) asked.add(call.id)
    if (role === 'tool') assert(id !== undefined && asked.has(id), `message ${at} of ${where} is a result of no call`)
  }
}

export function isTrained({ calls }: ExpectedMessage): boolean {
  return calls.length > 0 && calls.every((call) => call.isTrained)
}
