import { chatCalls, chatText, toChatMessage, type ChatMessage } from '../model/chat-message.ts'
import { textOf } from '../model/message.ts'
import type { TranscriptEntry } from '../model/transcript.ts'
import type { CallGraph, CallNode, RequestReader } from './graph/call-graph.ts'
import { chatMessageOf } from './sample-messages.ts'

/**
 * Returns the messages of the main agent at its end, without sub-agents: the prompt of the last call of the main conversation
 * and its answer. Messages that the harness dropped from the history are missing here too.
 */
export function mainConversation({ nodes }: CallGraph, reader: RequestReader): ChatMessage[] {
  const last = nodes.findLast(({ label }) => label === 'main')
  if (last === undefined) return []
  const { messages } = reader.readPrompt(last.turn)
  return [...messages, chatMessageOf(last.choice.message)].map(toChatMessage)
}

/**
 * Returns the main conversation with the source of each message. An assistant message of the last prompt is `sampled` if a
 * call of the session has the same text and tools; the recorded answer then replaces it. Answers that the prompt does not
 * repeat come first, in the order of their calls.
 */
export function mainTranscript({ nodes }: CallGraph, reader: RequestReader): TranscriptEntry[] {
  const last = nodes.findLast(({ label }) => label === 'main')
  if (last === undefined) return []
  const earlier = nodes.filter((node) => node !== last && node.turn !== last.turn)
  const unused = Map.groupBy(earlier, ({ choice: { message } }) =>
    answerKey(
      textOf(message),
      message.toolCalls.map(({ name }) => name),
    ),
  )
  const repeated = new Set<CallNode>()
  const repeats = reader.readPrompt(last.turn).messages.map((sent): TranscriptEntry => {
    const message = toChatMessage(sent)
    const call = message.role === 'assistant' ? unused.get(keyOf(message))?.shift() : undefined
    if (call === undefined) return { source: 'claimed', message }
    repeated.add(call)
    return { source: 'sampled', message: toAnswer(call) }
  })
  const leftOut = earlier.filter((node) => node.label === 'main' && !repeated.has(node))
  return [
    ...leftOut.map((call) => ({ source: 'sampled' as const, message: toAnswer(call), isLeftOut: true })),
    ...repeats,
    { source: 'sampled', message: toAnswer(last) },
  ]
}

function toAnswer({ choice }: CallNode): ChatMessage {
  return toChatMessage(chatMessageOf(choice.message))
}

function keyOf(message: ChatMessage): string {
  return answerKey(
    chatText(message),
    chatCalls(message).map(({ name }) => name),
  )
}

/** Ignores what harnesses change: white space around the text, the format of arguments, reasoning. */
function answerKey(text: string, tools: readonly string[]): string {
  return JSON.stringify([text.trim(), ...tools])
}
