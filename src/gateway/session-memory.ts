import { isJson, sortedJson } from '../lib/json-text.ts'
import { RecentMap } from '../lib/recent-map.ts'
import type { AssistantMessage, Message, ToolCall } from '../model/message.ts'
import type { TurnRequest, TurnResponse } from '../model/turn.ts'

/** How many answers can be gone back to. Older ones are forgotten, the harness is told so. */
const ANSWERS_KEPT = 64
/** How many tool calls are known by their exact text. */
const CALLS_KEPT = 4096

/**
 * What a session's gateway remembers between calls, because harnesses hand it back changed or not at all. Losing it (a
 * restart) costs exactness of a history, never an answer.
 */
export class SessionMemory {
  readonly #conversations = new RecentMap<readonly Message[]>(ANSWERS_KEPT)
  readonly #calls = new RecentMap<ToolCall>(CALLS_KEPT)

  remember(request: TurnRequest, response: TurnResponse): void {
    const [choice] = response.choices
    if (choice === undefined) return
    this.#conversations.set(response.id, [...request.messages, choice.message])
    for (const { message } of response.choices) {
      for (const call of message.toolCalls) this.#calls.set(call.id, call)
    }
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
