import { textOf } from '../../../model/message.ts'
import type { CallNode } from '../call-graph.ts'
import { tipsOf } from '../parents/find-origin.ts'
import type { Histories } from '../parents/histories.ts'

/** Minimum length in characters. Shorter answers occur in other texts by chance. */
const SHORTEST_SUMMARY = 12

/** Tags by which harnesses mark the summary within an answer. */
const SUMMARY_TAGS = ['summary', 'state_snapshot', 'conversation_summary'] as const

interface Summary {
  /**
   * The call that wrote the summary; if none is recorded, the last call of the conversation that it probably
   * summarises.
   */
  from: CallNode
  isRecorded: boolean
  /** Index of the message that contains the summary, leading system messages included. */
  at: number
}

/** Finds the summary of an earlier conversation among the messages of a call. */
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
  const isTagged = (text: string, i: number): boolean => i >= now.leading && taggedText(text) !== undefined
  const at = likely === undefined ? -1 : texts.findIndex(isTagged)
  if (likely === undefined || at === -1 || hasText(likely, texts[at] ?? '', histories)) return undefined
  return { from: likely, isRecorded: false, at }
}

/** Returns the part of an answer that a later conversation receives as summary. */
export function summaryOf({ choice }: CallNode): string {
  const text = textOf(choice.message)
  return (taggedText(text) ?? text).trim()
}

/** Returns the text within the first summary tag; undefined if there is none. One pass for each tag. */
export function taggedText(text: string): string | undefined {
  let first: { start: number; from: number; to: number } | undefined
  for (const tag of SUMMARY_TAGS) {
    const start = text.indexOf(`<${tag}>`)
    if (start === -1 || (first !== undefined && first.start < start)) continue
    const from = start + `<${tag}>`.length
    const to = text.indexOf(`</${tag}>`, from)
    if (to !== -1) first = { start, from, to }
  }
  return first && text.slice(first.from, first.to)
}

/** A summary is text only, does not answer a tool result, and its call continues another call or has no tools. */
function mayBeSummary(tip: CallNode, histories: Histories): boolean {
  if (tip.choice.message.toolCalls.length > 0 || summaryOf(tip).length < SHORTEST_SUMMARY) return false
  const history = histories.of(tip.turn)
  if (history === undefined || history.lastRole === 'tool') return false
  return tip.edge.verdict !== 'root' || !history.hasTools
}

/** Whether the earlier call already contains the message: then its tag does not mark a new summary. */
function hasText(call: CallNode, text: string, histories: Histories): boolean {
  return histories.requestOf(call.turn)?.messages.some((message) => textOf(message) === text) === true
}

/** Headers that identify the calling agent. They do not change by a compaction. */
const IDENTITY = ['x-claude-code-agent-id', 'thread-id', 'x-session-id'] as const

/** Returns the agent's identity headers; null for an absent header. */
export function identityOf({ turn }: CallNode): (string | null)[] {
  return IDENTITY.map((name) => turn.headers[name] ?? null)
}

function isSameAgent({ turn: one }: CallNode, { turn: other }: CallNode): boolean {
  return IDENTITY.every((name) => one.headers[name] === other.headers[name])
}
