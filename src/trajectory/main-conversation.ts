import { toChatMessage, type ChatMessage } from '../model/chat-message.ts'
import type { CallGraph, RequestReader } from './graph/call-graph.ts'
import { chatMessageOf } from './sample-messages.ts'

/**
 * What the agent itself, without its helpers, had said and been told when it ended: the prompt of the last call of the main
 * conversation, and its answer. A history that the harness shortened on the way is as short here.
 */
export function mainConversation({ nodes }: CallGraph, reader: RequestReader): ChatMessage[] {
  const last = nodes.findLast(({ label }) => label === 'main')
  if (last === undefined) return []
  const { messages } = reader.readPrompt(last.turn)
  return [...messages, chatMessageOf(last.choice.message)].map(toChatMessage)
}
