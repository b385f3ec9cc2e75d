import { textOf } from '../../../model/message.ts'
import type { CallNode } from '../call-graph.ts'
import type { Histories } from '../parents/histories.ts'

/** How a harness asks for a summary of the conversation. */
interface InstructionRule {
  harness: string
  /** The last user message, or the system prompt. */
  where: 'message' | 'system'
  pattern: RegExp
}

const RULES: readonly InstructionRule[] = [
  { harness: 'Claude Code', where: 'message', pattern: /^CRITICAL: Respond with TEXT ONLY/ },
  { harness: 'Claude Code', where: 'message', pattern: /^Your task is to create a detailed summary of th/ },
  { harness: 'Codex', where: 'message', pattern: /^You are performing a CONTEXT CHECKPOINT COMPACTION/ },
  // Gemini CLI asks twice: for the summary, and then for a review of it.
  { harness: 'Gemini CLI', where: 'message', pattern: /generate the (?:final |updated )?<state_snapshot>/ },
  { harness: 'Gemini CLI', where: 'message', pattern: /^Critically evaluate the <state_snapshot>/ },
  { harness: 'Gemini CLI', where: 'system', pattern: /^You are the component that summarizes internal chat history/ },
  { harness: 'Gemini CLI', where: 'system', pattern: /distilling chat history into a structured XML <state_snapshot>/ },
  // Qwen Code asks again with the instruction as system prompt when the first answer has no snapshot.
  { harness: 'Qwen Code', where: 'message', pattern: /produce the <state_snapshot> XML/ },
  { harness: 'OpenCode', where: 'system', pattern: /^You are a context summarization agent/ },
  { harness: 'pi', where: 'system', pattern: /^You are a context summarization assistant/ },
  { harness: 'pi', where: 'message', pattern: /Create a structured context checkpoint summary/ },
]

/** Some words of every rule; a search in the recorded text costs less than reading the request. */
const MARKS =
  /TEXT ONLY|create a detailed summary|CONTEXT CHECKPOINT|state_snapshot|summarizes internal chat|context summarization|context checkpoint summary/

/** Which harness asked for a summary in this call; undefined where the call does something else. */
export function compactionHarness({ turn }: CallNode, histories: Histories): string | undefined {
  if (!MARKS.test(turn.request)) return undefined
  const messages = histories.requestOf(turn)?.messages ?? []
  const last = messages.at(-1)
  const system = messages.filter(({ role }) => role === 'system' || role === 'developer')
  const texts = {
    message: last?.role === 'user' ? textOf(last).trim() : '',
    system: system.map(textOf).join('\n').trim(),
  }
  return RULES.find(({ where, pattern }) => pattern.test(texts[where]))?.harness
}
