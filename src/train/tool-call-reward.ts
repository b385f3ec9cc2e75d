import { commonPrefix } from '../lib/collections/common-prefix.ts'
import { chatText, type ChatMessage } from '../model/chat-message.ts'
import type { TranscriptEntry } from '../model/transcript.ts'

/** A tool call as text, in the format that the chat template describes and the engine parses. */
export function toolCallText(path: string): string {
  return writeCall('ls', JSON.stringify({ path }).replace(':', ': '))
}

/** Reward of an answer that repeats the asked call but was not executed. */
const WRITTEN = 0.6
/** pi received a valid call of `ls` and executed it. */
const EXECUTED = 0.7
/** The call was the asked one. */
const RIGHT = 0.9

/**
 * The reward of the demo. Asked for is one call of pi's tool `ls` with `path`, then an answer in text: 1. Parts of it count: up
 * to 0.6 for the share of the call that the first answer begins with, 0.7 for a valid call that pi executed, 0.9 for the right
 * call without an answer after it, or with further calls.
 */
export function gradeToolCall(transcript: readonly TranscriptEntry[], path: string): number {
  const answers = transcript.filter(({ source }) => source === 'sampled').map(({ message }) => message)
  const [first] = answers
  if (first === undefined) return 0
  const calls = listCalls(first)
  const isExecuted = transcript.some(({ message }) => message.role === 'tool')
  const input = isExecuted && calls[0]?.name === 'ls' ? parseObject(calls[0].arguments) : undefined
  if (input === undefined) {
    const written = chatText(first) + calls.map((call) => writeCall(call.name, call.arguments)).join('\n')
    const asked = toolCallText(path)
    return (WRITTEN * commonPrefix(written, asked)) / asked.length
  }
  if (input['path'] !== path) return EXECUTED
  const isAnswered = calls.length === 1 && answers.length === 2 && listCalls(answers[1]!).length === 0
  return isAnswered ? 1 : RIGHT
}

function writeCall(name: string, input: string): string {
  return `<tool_call>\n{"name": "${name}", "arguments": ${input}}\n</tool_call>`
}

/** A stream of tokens can end within a call, which then has the arguments up to there. */
function listCalls({ tool_calls: calls }: ChatMessage): { name: string; arguments: string }[] {
  if (!Array.isArray(calls)) return []
  return (calls as { function?: { name?: unknown; arguments?: unknown } }[]).map(({ function: called }) => ({
    name: String(called?.name),
    arguments: String(called?.arguments),
  }))
}

function parseObject(text: string): Readonly<Record<string, unknown>> | undefined {
  try {
    const value: unknown = JSON.parse(text)
    return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : undefined
  } catch {
    return undefined
  }
}
