import { parseJsonObject, sortedJson } from '../../lib/json/json-text.ts'
import { SizedMap } from '../../lib/collections/sized-map.ts'
import { charactersOf, type AssistantMessage, type Message, type ToolCall } from '../../model/message.ts'
import type { TurnRequest, TurnResponse } from '../../model/turn.ts'

/** Estimated memory of an entry besides its text. */
const ENTRY_BYTES = 128

/**
 * Keeps the answers of a session that harnesses return changed or not at all: conversations by response id, and tool
 * calls by call id. After a restart it is empty; histories may then be inexact, but every call is still answered.
 */
export class AnswerHistory {
  readonly #conversations: SizedMap<readonly Message[]>
  readonly #calls: SizedMap<ToolCall>
  /** Response id of the conversation that ends with an answer. */
  readonly #byAnswer = new WeakMap<Message, string>()
  /** Messages whose size is counted, because conversations share message objects. */
  readonly #counted = new WeakSet<Message>()

  constructor(limitBytes: number) {
    this.#conversations = new SizedMap(limitBytes / 2)
    this.#calls = new SizedMap(limitBytes / 2)
  }

  get bytes(): number {
    return this.#conversations.bytes + this.#calls.bytes
  }

  remember(request: TurnRequest, response: TurnResponse): void {
    const [choice] = response.choices
    if (choice === undefined) return
    this.#rememberConversation(response.id, [...request.messages, choice.message])
    for (const { message } of response.choices) {
      for (const call of message.toolCalls) {
        this.#calls.set(call.id, call, ENTRY_BYTES + 2 * (call.id.length + call.name.length + call.arguments.length))
      }
    }
  }

  #rememberConversation(responseId: string, messages: readonly Message[]): void {
    for (const message of messages) {
      const continued = this.#byAnswer.get(message)
      if (continued !== undefined) this.#conversations.demote(continued)
    }
    const added = messages.filter((message) => !this.#counted.has(message))
    for (const message of added) this.#counted.add(message)
    const text = added.reduce((sum, message) => sum + ENTRY_BYTES + 2 * charactersOf(message), 0)
    this.#byAnswer.set(messages.at(-1) as Message, responseId)
    this.#conversations.set(responseId, messages, ENTRY_BYTES + 8 * messages.length + text)
  }

  recall(responseId: string): readonly Message[] | undefined {
    return this.#conversations.get(responseId)
  }

  /**
   * Returns the request with tool arguments as they were sampled. Most harnesses parse and print them again, which changes
   * spaces and digits. Arguments that are equal as JSON belong to the same call.
   */
  restore(request: TurnRequest): TurnRequest {
    let changed = false
    const messages = request.messages.map((message) => {
      if (message.role !== 'assistant' || message.toolCalls.length === 0) return message
      const restored = this.#restoreMessage(message)
      changed ||= restored !== message
      return restored
    })
    return changed ? { ...request, messages } : request
  }

  #restoreMessage(message: AssistantMessage): AssistantMessage {
    const toolCalls = message.toolCalls.map((call) => this.#restoreCall(call))
    return toolCalls.some((call, i) => call !== message.toolCalls[i]) ? { ...message, toolCalls } : message
  }

  #restoreCall(call: ToolCall): ToolCall {
    const sampled = this.#calls.get(call.id)
    if (sampled === undefined || sampled.arguments === call.arguments) return call
    if (isSameJson(sampled.arguments, call.arguments)) return { ...call, arguments: sampled.arguments }
    // A harness cannot print arguments that are no JSON object as sampled: it repairs or omits them, and OpenCode replaces the
    // call by a call of a tool named `invalid`. So both name and arguments are restored; only one of them would be a call
    // that neither the harness nor the model has made.
    return parseJsonObject(sampled.arguments) !== undefined
      ? call
      : { ...call, name: sampled.name, arguments: sampled.arguments }
  }
}

/** Whether two JSON texts differ only in white space, key order and the notation of numbers and escapes. */
export function isSameJson(one: string, other: string): boolean {
  const sorted = sortedJson(one)
  return sorted !== undefined && sorted === sortedJson(other)
}
