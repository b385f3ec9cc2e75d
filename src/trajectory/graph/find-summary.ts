import { textOf } from '../../model/message.ts'
import type { CallNode } from './call-graph.ts'
import { tipsOf } from './find-origin.ts'
import type { Histories } from './histories.ts'

/** Shorter answers stand in many texts by chance. */
const SHORTEST_SUMMARY = 12

/** What several harnesses put around a summary, so that they can take it out of the answer. */
const SUMMARY_TAG = /<(summary|state_snapshot|conversation_summary)>([\s\S]*?)<\/\1>/

interface Summary {
  /** The call that wrote it, or, where none is recorded, the last one of the conversation it seems to stand for. */
  from: CallNode
  isRecorded: boolean
  /** Index of the message it stands in, system messages in front counted. */
  at: number
}

/** The summary of an earlier conversation among the messages of a call. */
export function findSummary(
  node: CallNode,
  { from, earlier }: { from: CallNode; earlier: readonly CallNode[] },
  histories: Histories,
): Summary | undefined {
  const now = histories.of(node.turn)
  const messages = histories.requestOf(node.turn)?.messages
  if (now === undefined || messages === undefined) return undefined
  const texts = messages.map((message) => (message.role === 'tool' ? '' : textOf(message)))
  let likely: CallNode | undefined
  for (const tip of tipsOf(from, earlier)) {
    if (!isSameAgent(node, tip)) continue
    if (likely === undefined && histories.of(tip.turn)?.system === now.system) likely = tip
    if (!mayBeSummary(tip, histories)) continue
    const summary = summaryOf(tip)
    const at = texts.findIndex((text) => text.includes(summary))
    if (at !== -1) return { from: tip, isRecorded: true, at }
  }
  const at = likely === undefined ? -1 : texts.findIndex((text, i) => i >= now.leading && SUMMARY_TAG.test(text))
  if (likely === undefined || at === -1 || hasText(likely, texts[at] ?? '', histories)) return undefined
  return { from: likely, isRecorded: false, at }
}

/** The part of an answer that a later conversation is given. */
export function summaryOf({ choice }: CallNode): string {
  const text = textOf(choice.message)
  return (SUMMARY_TAG.exec(text)?.[2] ?? text).trim()
}

/** Text alone, asked for by someone who is not a tool, in a call that goes on from another or has no tools. */
function mayBeSummary(tip: CallNode, histories: Histories): boolean {
  if (tip.choice.message.toolCalls.length > 0 || summaryOf(tip).length < SHORTEST_SUMMARY) return false
  const request = histories.requestOf(tip.turn)
  if (request === undefined || request.messages.at(-1)?.role === 'tool') return false
  return tip.edge.verdict !== 'root' || request.tools.length === 0
}

/** A tag that stood in the conversation before is no sign of a summary. */
function hasText(call: CallNode, text: string, histories: Histories): boolean {
  return histories.requestOf(call.turn)?.messages.some((message) => textOf(message) === text) === true
}

/** Headers in which harnesses say who is asking; the same before and after a compaction. */
const IDENTITY = ['x-claude-code-agent-id', 'thread-id', 'x-session-id'] as const

export function isSameAgent({ turn: one }: CallNode, { turn: other }: CallNode): boolean {
  return IDENTITY.every((name) => one.headers[name] === other.headers[name])
}
