import { isJson, sortedJson } from '../../lib/json/json-text.ts'
import { SizedMap } from '../../lib/collections/sized-map.ts'
import { charactersOf, type AssistantMessage, type Message, type ToolCall } from '../../model/message.ts'
import type { TurnRequest, TurnResponse } from '../../model/turn.ts'

/** Memory of an entry besides its text. */
const ENTRY_BYTES = 128

/**
 * What a session's gateway remembers between calls, because harnesses return it changed or not at all. Losing it (a
 * restart) costs exactness of a history, never an answer.
 */
export class SessionMemory {
  readonly #conversations: SizedMap<readonly Message[]>
  readonly #calls: SizedMap<ToolCall>
  /** The conversation that ends with an answer. */
  readonly #byAnswer = new WeakMap<Message, string>()
  /** Messages whose size is counted: conversations share the objects. */
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
   * The request with tool arguments as they were sampled. Most harnesses parse and print them again, which moves spaces
   * and digits; what is equal as JSON is taken for the same call.
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
    // A harness has no way to print broken arguments as they were: it repairs them or leaves them out, and OpenCode makes
    // the call one of a tool named `invalid`. Half of each would be a call that neither it nor the model has made.
    return isJson(sampled.arguments) ? call : { ...call, name: sampled.name, arguments: sampled.arguments }
  }
}

/** Equal but for white space, key order and how numbers and escapes are written. */
export function isSameJson(one: string, other: string): boolean {
  const sorted = sortedJson(one)
  return sorted !== undefined && sorted === sortedJson(other)
}
