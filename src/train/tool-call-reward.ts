import type { ChatMessage } from '../model/chat-message.ts'
import { chatText } from '../model/chat-message.ts'
import type { TranscriptEntry } from '../model/transcript.ts'

/** What a session of the demo must do: call the tool `ls` once with this path, then answer in text. */
export interface AskedCall {
  path: string
}

/** Beginnings of the asked call in the format of the model's chat template. Each is worth `STEP`. */
const BEGINNINGS = [
  /^\s*<tool_call>/,
  /^\s*<tool_call>\s*\{"name": "/,
  /^\s*<tool_call>\s*\{"name": "ls", "arguments": \{/,
  /^\s*<tool_call>\s*\{"name": "ls", "arguments": \{"path": "/,
]
const STEP = 0.1
/** pi received a valid call of `ls` and executed it. */
const EXECUTED = 0.6
/** With the asked path. */
const RIGHT_PATH = 0.9

/** Components of the reward: how far the first answer came, and how the session ended. */
export function gradeToolCall(transcript: readonly TranscriptEntry[], { path }: AskedCall): number {
  const answers = transcript.filter(({ source }) => source === 'sampled').map(({ message }) => message)
  const [first] = answers
  if (first === undefined) return 0
  const hasResult = transcript.some(({ message }) => message.role === 'tool')
  const [call] = listCalls(first)
  if (call === undefined || !hasResult) {
    return STEP * BEGINNINGS.filter((beginning) => beginning.test(chatText(first))).length
  }
  if (call.name !== 'ls') return EXECUTED - STEP
  if (call.path !== path) return EXECUTED
  const last = answers.at(-1)!
  const hasAnswered = answers.length === 2 && listCalls(last).length === 0
  return hasAnswered ? 1 : RIGHT_PATH
}

function listCalls({ tool_calls: calls }: ChatMessage): { name: string; path: unknown }[] {
  if (!Array.isArray(calls)) return []
  return (calls as { function?: { name?: unknown; arguments?: unknown } }[]).map(({ function: called }) => ({
    name: String(called?.name),
    path: parseArguments(called?.arguments)?.['path'],
  }))
}

function parseArguments(text: unknown): Record<string, unknown> | undefined {
  try {
    const value: unknown = JSON.parse(String(text))
    return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : undefined
  } catch {
    return undefined
  }
}
