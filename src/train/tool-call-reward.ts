import { commonPrefix } from '../lib/collections/common-prefix.ts'
import { chatText, type ChatMessage } from '../model/chat-message.ts'
import type { TranscriptEntry } from '../model/transcript.ts'

/** A tool call as text, in the format that the chat template describes and the engine parses. */
export function toolCallText(path: string): string {
  return `<tool_call>\n{"name": "ls", "arguments": {"path": "${path}"}}\n</tool_call>`
}

/** Reward of an answer that repeats the asked call but was not executed. */
const WRITTEN = 0.6
/** pi received a valid call and executed it. */
const EXECUTED = 0.7
/** The call was the asked one. */
const RIGHT = 0.9

/**
 * The reward of the demo. Asked for is one call of pi's tool `ls` with `path`, then an answer in text: 1. Parts of it count: up
 * to 0.6 for the share of the call that the first answer begins with, 0.7 for a call of any tool that pi executed, 0.9 for the
 * right call without an answer after it, or with further calls.
 */
export function gradeToolCall(transcript: readonly TranscriptEntry[], path: string): number {
  const answers = transcript.filter(({ source }) => source === 'sampled').map(({ message }) => message)
  const [first] = answers
  if (first === undefined) return 0
  const [call] = listCalls(first)
  const isExecuted = transcript.some(({ message }) => message.role === 'tool')
  if (call === undefined || !isExecuted) {
    const asked = toolCallText(path)
    return (WRITTEN * commonPrefix(chatText(first), asked)) / asked.length
  }
  if (call.name !== 'ls' || call.path !== path) return EXECUTED
  const isAnswered = answers.length === 2 && listCalls(answers[1]!).length === 0
  return isAnswered ? 1 : RIGHT
}

function listCalls({ tool_calls: calls }: ChatMessage): { name: unknown; path: unknown }[] {
  if (!Array.isArray(calls)) return []
  return (calls as { function?: { name?: unknown; arguments?: unknown } }[]).map(({ function: called }) => ({
    name: called?.name,
    path: parseObject(String(called?.arguments))['path'],
  }))
}

function parseObject(text: string): Readonly<Record<string, unknown>> {
  try {
    return Object(JSON.parse(text)) as Record<string, unknown>
  } catch {
    return {}
  }
}
