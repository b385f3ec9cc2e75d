import { commonPrefix, commonSuffix } from '../../../lib/collections/common-prefix.ts'
import { textOf } from '../../../model/message.ts'
import type { CallNode } from '../call-graph.ts'
import { isEcho, isEmpty, resembles } from './compare-answer.ts'
import { sharedMessages, type Histories, type History } from './histories.ts'

/**
 * What the messages of a call have to do with those of an earlier one. `continues`: they begin with all of its messages,
 * and more follow. `edited`: its answer stands in its place, but message `at` before it is another. `repeats`: the same
 * messages. `reworded`: the same but for a remark added to message `at`, because the answer was of no use.
 */
export type Origin =
  | { kind: 'continues'; from: CallNode; isAnswered: boolean }
  | { kind: 'edited'; from: CallNode; at: number }
  | { kind: 'repeats'; from: CallNode }
  | { kind: 'reworded'; from: CallNode; at: number }

/** How many conversations are looked at: an agent and its sub-agents go on from one of their last calls. */
const LOOKED_AT = 32

/** The call whose conversation goes on, by the messages alone: the deepest one. Undefined when the messages show none. */
export function findOrigin(
  node: CallNode,
  { from, earlier }: { from: CallNode; earlier: readonly CallNode[] },
  histories: Histories,
): Origin | undefined {
  const now = histories.of(node.turn)
  if (now === undefined) return undefined
  let best: { origin: Origin; depth: number } | undefined
  for (const tip of tipsOf(from, earlier)) {
    const found = relate(node, now, tip, histories)
    if (found !== undefined && (best === undefined || found.depth > best.depth)) best = found
  }
  return best?.origin
}

/** Last calls of conversations, `first` in front, then the latest. */
export function* tipsOf(first: CallNode, earlier: readonly CallNode[]): Generator<CallNode> {
  yield first
  const goneOnFrom = new Set<CallNode>()
  let left = LOOKED_AT
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
): { origin: Origin; depth: number } | undefined {
  const then = histories.of(tip.turn)
  // Other instructions and other tools: another agent, even if it is shown what this one did.
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

/** Of a call and those it literally goes on from, the last with no more than so many messages. */
function deepestWithin(tip: CallNode, most: number, histories: Histories): CallNode | undefined {
  const { ancestry } = histories
  const at = (distance: number): CallNode => ancestry.ancestorOf(tip, distance) as CallNode
  // The further up, the fewer messages.
  let [low, high] = [0, ancestry.depthOf(tip) + 1]
  while (low < high) {
    const middle = (low + high) >>> 1
    const length = histories.of(at(middle).turn)?.messages.length ?? Number.POSITIVE_INFINITY
    if (length <= most) high = middle
    else low = middle + 1
  }
  return ancestry.ancestorOf(tip, low)
}

/** Harnesses ask once more with a remark when an answer was empty or did not come through. */
function isReworded(
  node: CallNode,
  now: History,
  tip: CallNode,
  then: History,
  shared: number,
  histories: Histories,
): boolean {
  const isOfNoUse = isEmpty(tip.choice.message) || tip.turn.failure !== undefined || tip.turn.delivery === 'undelivered'
  if (!isOfNoUse || now.messages.length !== then.messages.length || now.system !== then.system) return false
  if (now.messages.some((message, i) => i !== shared && message !== then.messages[i])) return false
  const [before, after] = [histories.message(tip.turn, shared), histories.message(node.turn, shared)]
  if (before?.role !== 'user' || after?.role !== 'user') return false
  const [short, long] = [textOf(before), textOf(after)]
  const prefix = commonPrefix(short, long)
  return long.length > short.length && prefix + commonSuffix(short, long, short.length - prefix) === short.length
}
