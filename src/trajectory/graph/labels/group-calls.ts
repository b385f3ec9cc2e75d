import { textOf } from '../../../model/message.ts'
import type { CallNode } from '../call-graph.ts'
import { DisjointSets } from '../disjoint-sets.ts'
import { summaryOf } from './find-summary.ts'
import type { Histories } from '../parents/histories.ts'
import type { PassedOver } from '../parents/passed-over.ts'
import { PromptIndex } from '../parents/prompt-index.ts'

/** Groups answers to the same request: several choices, and repetitions of the request. */
export function groupByRequest<N extends CallNode>(nodes: readonly N[], histories: Histories): N[][] {
  const groups = new DisjointSets<CallNode>(nodes)
  const byTurn = new Map<string, CallNode>()
  for (const node of nodes) {
    const first = byTurn.get(node.turn.id)
    if (first === undefined) byTurn.set(node.turn.id, node)
    else groups.join(first, node)
  }
  const prompts = new PromptIndex<CallNode>()
  for (const node of byTurn.values()) groups.join(prompts.findOrAdd(node), node)
  for (const node of byTurn.values()) {
    const original = node.turn.retryOf === undefined ? undefined : byTurn.get(node.turn.retryOf)
    if (original !== undefined) groups.join(original, node)
    if (isReworded(node, histories) && node.edge.verdict === 'forked') groups.join(node.edge.from, node)
  }
  return groups.sets() as N[][]
}

/** Whether the request repeats that of the call before with an added remark and no further message. */
function isReworded({ edge, turn }: CallNode, histories: Histories): boolean {
  if (edge.verdict !== 'forked' || edge.reason !== 'edited-history') return false
  const length = histories.of(turn)?.messages.length
  return length !== undefined && length === histories.of(edge.from.turn)?.messages.length
}

/** Groups calls of one conversation, continued exactly or not. A summary from outside begins a new conversation. */
export function groupByConversation<N extends CallNode>(nodes: readonly N[], requests: readonly N[][]): N[][] {
  const groups = new DisjointSets<CallNode>(nodes)
  for (const [first, ...others] of requests) for (const other of others) groups.join(first as N, other)
  for (const node of nodes) {
    const { edge } = node
    if (edge.verdict === 'exact') groups.join(edge.parent, node)
    if (edge.verdict !== 'forked') continue
    // A summary call outside every conversation joins none, so the calls that start from it do not join one either.
    if (edge.reason !== 'compaction' || edge.from.edge.verdict !== 'root') groups.join(edge.from, node)
  }
  return groups.sets() as N[][]
}

/** Maps each call whose answer a later call continues, and each call that wrote a summary, to that later call. */
export function findSuccessors(
  nodes: readonly CallNode[],
  passedOver: PassedOver,
  histories: Histories,
): { goneOnFrom: Map<CallNode, CallNode>; summaries: Map<CallNode, CallNode> } {
  const goneOnFrom = new Map<CallNode, CallNode>()
  const summaries = new Map<CallNode, CallNode>()
  for (const node of nodes) {
    const { edge } = node
    if (edge.verdict === 'exact' && !goneOnFrom.has(edge.parent)) goneOnFrom.set(edge.parent, node)
    if (edge.verdict !== 'forked') continue
    if (edge.reason === 'compaction' && isSummaryFor(edge.from, node, histories)) {
      if (!summaries.has(edge.from)) summaries.set(edge.from, node)
    } else if (keepsAnswer(node, edge.from, edge.commonTokens, histories) && !goneOnFrom.has(edge.from)) {
      goneOnFrom.set(edge.from, node)
    }
  }
  for (const node of nodes) {
    for (const passed of passedOver.by(node)) if (!goneOnFrom.has(passed)) goneOnFrom.set(passed, node)
  }
  return { goneOnFrom, summaries }
}

function isSummaryFor(call: CallNode, later: CallNode, histories: Histories): boolean {
  const summary = summaryOf(call)
  return histories.requestOf(later.turn)?.messages.some((message) => textOf(message).includes(summary)) === true
}

/** Whether the message at the position of the answer is an assistant message, edited or not. */
function keepsAnswer(node: CallNode, from: CallNode, common: number, histories: Histories): boolean {
  const at = histories.of(from.turn)?.messages.length
  if (at === undefined || histories.of(node.turn) === undefined) return common >= from.response.promptIds.length
  return histories.isAnswer(node.turn, at)
}
