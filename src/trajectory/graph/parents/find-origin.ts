import { commonPrefix, commonSuffix } from '../../../lib/collections/common-prefix.ts'
import { countLeading } from '../../../lib/collections/count-leading.ts'
import { textOf } from '../../../model/message.ts'
import type { CallNode } from '../call-graph.ts'
import { isEcho, isEmpty, resembles } from './compare-answer.ts'
import { sharedMessages, type Histories, type History } from './histories.ts'

/**
 * How the messages of a call relate to those of an earlier call. `continues`: they begin with all of its messages and add
 * more. `edited`: they repeat its answer, but message `at` before it differs. `repeats`: the same messages. `reworded`: the
 * same messages with a remark added to message `at`, because the answer was unusable.
 */
export type CallOrigin =
  | { kind: 'continues'; from: CallNode; isAnswered: boolean }
  | { kind: 'edited'; from: CallNode; at: number }
  | { kind: 'repeats'; from: CallNode }
  | { kind: 'reworded'; from: CallNode; at: number }

/** Number of conversations compared: an agent and its sub-agents continue one of their last calls. */
const TIPS_COMPARED = 32

/** Finds the deepest call that a call continues, by the messages alone. Undefined if the messages identify none. */
export function findOrigin(
  node: CallNode,
  { from, earlier }: { from: CallNode; earlier: readonly CallNode[] },
  histories: Histories,
): CallOrigin | undefined {
  const now = histories.of(node.turn)
  if (now === undefined) return undefined
  let best: { origin: CallOrigin; depth: number } | undefined
  for (const tip of tipsOf(from, earlier)) {
    const found = relate(node, now, tip, histories)
    if (found !== undefined && (best === undefined || found.depth > best.depth)) best = found
  }
  return best?.origin
}

/** Yields the last calls of conversations: `first`, then the latest. */
export function* tipsOf(first: CallNode, earlier: readonly CallNode[]): Generator<CallNode> {
  yield first
  const goneOnFrom = new Set<CallNode>()
  let left = TIPS_COMPARED
  for (let i = earlier.length - 1; i >= 0 && left > 0; i--) {
    const node = earlier[i] as CallNode
    if (node.edge.verdict === 'exact') goneOnFrom.add(node.edge.parent)
    if (node === first || goneOnFrom.has(node)) continue
    left -= 1
    yield node
  }
}

function relate(
  node: CallNode,
  now: History,
  tip: CallNode,
  histories: Histories,
): { origin: CallOrigin; depth: number } | undefined {
  const then = histories.of(tip.turn)
  // Other instructions and other tools mean another agent, even if its messages repeat this conversation.
  if (then === undefined || (then.system !== now.system && then.tools !== now.tools)) return undefined
  const [shared, length] = [sharedMessages(now, then), then.messages.length]
  if (length === 0) return undefined
  if (shared === length && now.messages.length === length) {
    return { origin: { kind: 'repeats', from: tip }, depth: 4 * length }
  }
  if (shared < length && now.messages.length > length && !isEmpty(tip.choice.message)) {
    if (isEcho(histories.message(node.turn, length), tip.choice.message)) {
      return { origin: { kind: 'edited', from: tip, at: shared }, depth: 4 * length + 1 }
    }
  }
  if (isReworded(node, now, tip, then, shared, histories)) {
    return { origin: { kind: 'reworded', from: tip, at: shared }, depth: 4 * length }
  }
  const from = deepestWithin(tip, Math.min(shared, now.messages.length - 1), histories)
  const at = from && histories.of(from.turn)?.messages.length
  if (from === undefined || at === undefined || at === 0) return undefined
  const echo = histories.message(node.turn, at)
  const depth = 4 * at + (isEcho(echo, from.choice.message) ? 3 : resembles(echo, from.choice.message) ? 2 : -1)
  return { origin: { kind: 'continues', from, isAnswered: depth > 4 * at }, depth }
}

/** Returns the nearest of a call and its ancestors with at most `most` messages. */
function deepestWithin(tip: CallNode, most: number, histories: Histories): CallNode | undefined {
  const { ancestry } = histories
  const at = (distance: number): CallNode => ancestry.ancestorOf(tip, distance) as CallNode
  // The number of messages falls with the distance.
  const isLonger = (distance: number): boolean =>
    (histories.of(at(distance).turn)?.messages.length ?? Number.POSITIVE_INFINITY) > most
  return ancestry.ancestorOf(tip, countLeading(ancestry.depthOf(tip) + 1, isLonger))
}

/** Harnesses repeat a request with a remark if the answer was empty or was not delivered. */
function isReworded(
  node: CallNode,
  now: History,
  tip: CallNode,
  then: History,
  shared: number,
  histories: Histories,
): boolean {
  const isUnusable =
    isEmpty(tip.choice.message) || tip.turn.failure !== undefined || tip.turn.delivery === 'undelivered'
  if (!isUnusable || now.messages.length !== then.messages.length || now.system !== then.system) return false
  if (now.messages.some((message, i) => i !== shared && message !== then.messages[i])) return false
  const [before, after] = [histories.message(tip.turn, shared), histories.message(node.turn, shared)]
  if (before?.role !== 'user' || after?.role !== 'user') return false
  const [short, long] = [textOf(before), textOf(after)]
  const prefix = commonPrefix(short, long)
  return long.length > short.length && prefix + commonSuffix(short, long, short.length - prefix) === short.length
}
