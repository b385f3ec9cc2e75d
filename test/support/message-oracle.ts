import assert from 'node:assert/strict'
import type { Choice, Turn } from '../../src/model/turn.ts'

/**
 * What the messages of a sample must be, from the recorded Chat Completions requests alone: the messages that the harness
 * sent in the last call of the sample, then the answer of that call. Calls no code that builds or exports samples.
 */

export interface WireMessage {
  role: string
  content?: unknown
  reasoning_content?: unknown
  tool_calls?: { id: string; function: { name: string; arguments: string } }[]
  tool_call_id?: string
}

/** One call of a sample as it was recorded, and whether the sample says that it is trained. */
export interface RowCall {
  turn: Turn
  choice: Choice
  isTrained: boolean
}

/** One message that a sample must hold. */
export interface ExpectedMessage {
  message: WireMessage
  /** The calls whose answer it is. Empty for everything that the policy did not say in this sample. */
  calls: readonly RowCall[]
}

export interface RecordedRequest {
  messages: WireMessage[]
  tools?: unknown[]
}

export function requestOf({ turn }: Pick<RowCall, 'turn'>): RecordedRequest {
  return JSON.parse(turn.request) as RecordedRequest
}

/** For samples whose tokens are the prompt that the engine read in the last call: one message for each that was sent. */
export function expectedMessages(calls: readonly RowCall[]): ExpectedMessage[] {
  return eachSent(calls, (message, own, isWhole) => {
    const [only] = own
    const isEcho = isWhole && only !== undefined && saysTheSame(message, answerOf(only))
    return [{ message: isEcho ? answerOf(only, message) : message, calls: own }]
  })
}

/**
 * For samples that may hold an answer which the harness did not go on from (splice): the answer stands before the message
 * that the harness sent instead of it, unless both call the same tools. Then the answer takes its place.
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

/** `isWhole`: the message stands where the answer of its only call belongs. */
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

/** Every answer stands behind the messages of its request; an assistant message that was resumed stands there only once. */
function placeOf(call: RowCall, sent: readonly WireMessage[]): number {
  const { messages } = requestOf(call)
  const behind = messages.length
  if (sent[behind]?.role === 'assistant') return behind
  assert.equal(messages.at(-1)?.role, 'assistant', `the answer of ${call.turn.id} is not in the last request`)
  assert.equal(sent[behind - 1]?.role, 'assistant', `the answer of ${call.turn.id} is not in the last request`)
  return behind - 1
}

/** Harnesses trim texts, print arguments anew and leave out reasoning; all else that differs is something else said. */
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

/** As it was sampled; with the ids that the harness uses for its tool calls. */
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

/** Engines refuse a history with arguments that are no JSON, so the gateway sends these as one JSON string. */
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

/** Throws unless every tool result stands behind the assistant message that asked for it. */
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
