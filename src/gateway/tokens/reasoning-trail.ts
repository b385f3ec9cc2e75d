import { hash } from 'node:crypto'
import type { AssistantMessage, Message } from '../../model/message.ts'

/**
 * The reasoning of each assistant message of a prompt, the last message first. Calls of one conversation share their
 * tails, so a call adds one element.
 */
export interface ReasoningTrail {
  /** Index of the message. */
  at: number
  /** Digest of the reasoning without white space around it; 0: none. */
  digest: number
  before: ReasoningTrail | undefined
}

/** Returns the trail of a conversation with `answer` at index `at`. */
export function addReasoning(before: ReasoningTrail | undefined, at: number, answer: AssistantMessage): ReasoningTrail {
  return { at, digest: digestOf(answer.reasoning), before }
}

/** Returns the trail of a request. `known`: the trail of the conversation that the request continues. */
export function trailOf(messages: readonly Message[], known: ReasoningTrail | undefined): ReasoningTrail | undefined {
  let trail = known !== undefined && repeatsReasoning(messages, known) ? known : undefined
  for (let at = (trail?.at ?? -1) + 1; at < messages.length; at++) {
    const message = messages[at]
    if (message?.role === 'assistant') trail = addReasoning(trail, at, message)
  }
  return trail
}

/** Whether all reasoning in the messages equals that of the trail. Messages without reasoning match: most harnesses omit it. */
export function repeatsReasoning(messages: readonly Message[], trail: ReasoningTrail): boolean {
  for (let known: ReasoningTrail | undefined = trail; known !== undefined; known = known.before) {
    const message = messages[known.at]
    if (message?.role !== 'assistant' || !message.reasoning?.trim()) continue
    if (digestOf(message.reasoning) !== known.digest) return false
  }
  return true
}

function digestOf(reasoning: string | undefined): number {
  const text = reasoning?.trim() ?? ''
  return text === '' ? 0 : Number.parseInt(hash('sha1', text).slice(0, 13), 16)
}
