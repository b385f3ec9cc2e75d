import { textOf } from '../../../model/message.ts'
import type { CallNode } from '../call-graph.ts'
import { tipsOf } from '../parents/find-origin.ts'
import type { Histories } from '../parents/histories.ts'

/** Shorter answers stand in many texts by chance. */
const SHORTEST_SUMMARY = 12

/** What several harnesses put around a summary, so that they can take it out of the answer. */
const SUMMARY_TAGS = ['summary', 'state_snapshot', 'conversation_summary'] as const

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
  const isTagged = (text: string, i: number): boolean => i >= now.leading && taggedText(text) !== undefined
  const at = likely === undefined ? -1 : texts.findIndex(isTagged)
  if (likely === undefined || at === -1 || hasText(likely, texts[at] ?? '', histories)) return undefined
  return { from: likely, isRecorded: false, at }
}

/** The part of an answer that a later conversation is given. */
export function summaryOf({ choice }: CallNode): string {
  const text = textOf(choice.message)
  return (taggedText(text) ?? text).trim()
}

/** The text between the first tag of a summary and its end; undefined where there is none. One pass for each tag. */
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

/** Text alone, asked for by someone who is not a tool, in a call that goes on from another or has no tools. */
function mayBeSummary(tip: CallNode, histories: Histories): boolean {
  if (tip.choice.message.toolCalls.length > 0 || summaryOf(tip).length < SHORTEST_SUMMARY) return false
  const history = histories.of(tip.turn)
  if (history === undefined || history.lastRole === 'tool') return false
  return tip.edge.verdict !== 'root' || !history.hasTools
}

/** A tag that stood in the conversation before is no sign of a summary. */
function hasText(call: CallNode, text: string, histories: Histories): boolean {
  return histories.requestOf(call.turn)?.messages.some((message) => textOf(message) === text) === true
}

/** Headers in which harnesses say who is asking; the same before and after a compaction. */
const IDENTITY = ['x-claude-code-agent-id', 'thread-id', 'x-session-id'] as const

/** Who is asking, as the headers tell; null where they do not. */
export function identityOf({ turn }: CallNode): (string | null)[] {
  return IDENTITY.map((name) => turn.headers[name] ?? null)
}

function isSameAgent({ turn: one }: CallNode, { turn: other }: CallNode): boolean {
  return IDENTITY.every((name) => one.headers[name] === other.headers[name])
}
