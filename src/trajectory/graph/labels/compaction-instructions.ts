import { textOf } from '../../../model/message.ts'
import type { CallNode } from '../call-graph.ts'
import type { Histories } from '../parents/histories.ts'

/** Recognises the instruction by which a harness requests a summary of the conversation. */
interface InstructionRule {
  harness: string
  /** `message`: the last user message. `system`: the system prompt. */
  where: 'message' | 'system'
  pattern: RegExp
}

const RULES: readonly InstructionRule[] = [
  { harness: 'Claude Code', where: 'message', pattern: /^CRITICAL: Respond with TEXT ONLY/ },
  { harness: 'Claude Code', where: 'message', pattern: /^Your task is to create a detailed summary of th/ },
  { harness: 'Codex', where: 'message', pattern: /^You are performing a CONTEXT CHECKPOINT COMPACTION/ },
  // Gemini CLI makes two calls: the summary, then a review of the summary.
  { harness: 'Gemini CLI', where: 'message', pattern: /generate the (?:final |updated )?<state_snapshot>/ },
  { harness: 'Gemini CLI', where: 'message', pattern: /^Critically evaluate the <state_snapshot>/ },
  { harness: 'Gemini CLI', where: 'system', pattern: /^You are the component that summarizes internal chat history/ },
  { harness: 'Gemini CLI', where: 'system', pattern: /distilling chat history into a structured XML <state_snapshot>/ },
  // If the first answer has no snapshot, Qwen Code repeats the call with the instruction as system prompt.
  { harness: 'Qwen Code', where: 'message', pattern: /produce the <state_snapshot> XML/ },
  { harness: 'OpenCode', where: 'system', pattern: /^You are a context summarization agent/ },
  { harness: 'pi', where: 'system', pattern: /^You are a context summarization assistant/ },
  { harness: 'pi', where: 'message', pattern: /Create a structured context checkpoint summary/ },
]

/** Contains some words of every rule. Searching the recorded text is cheaper than parsing the request. */
const MARKS =
  /TEXT ONLY|create a detailed summary|CONTEXT CHECKPOINT|state_snapshot|summarizes internal chat|context summarization|context checkpoint summary/

/** Returns the harness whose summary instruction this call contains; undefined if it contains none. */
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
