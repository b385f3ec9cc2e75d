import type { CallNode } from '../call-graph.ts'
import { resembles } from './compare-answer.ts'
import type { Histories } from './histories.ts'

/** How many branches are looked at. */
const BRANCHES = 32

/**
 * Calls that a call goes on from by its messages, though its prompt literally begins with an older one only: the end of
 * the history came back changed, so that newer calls look like a branch that was left behind.
 */
export class PassedOver {
  readonly #histories: Histories
  /** The last call of the branch that begins with a call. */
  readonly #tips = new Map<CallNode, CallNode>()

  /** `nodes`: each behind the call that it continues; their children are known. */
  constructor(nodes: readonly CallNode[], histories: Histories) {
    this.#histories = histories
    for (const node of nodes.toReversed()) {
      const last = node.children.at(-1)
      this.#tips.set(node, last === undefined ? node : (this.#tips.get(last) ?? last))
    }
  }

  by(node: CallNode): CallNode[] {
    return this.#tipsBeside(node).filter((tip) => repeatsAnswer(node, tip, this.#histories))
  }

  /** Last calls of branches that began where this call's does, but earlier. */
  #tipsBeside({ edge, turn }: CallNode): CallNode[] {
    if (edge.verdict !== 'exact') return []
    const { children } = edge.parent
    const earlier = countBefore(children, turn.startedAt)
    return children.slice(Math.max(0, earlier - BRANCHES), earlier).map((sibling) => this.#tips.get(sibling) ?? sibling)
  }
}

/** How many calls started before a time; the calls are sorted by it. */
function countBefore(nodes: readonly CallNode[], time: number): number {
  let [low, high] = [0, nodes.length]
  while (low < high) {
    const middle = (low + high) >>> 1
    if ((nodes[middle] as CallNode).turn.startedAt < time) low = middle + 1
    else high = middle
  }
  return low
}

function repeatsAnswer(node: CallNode, earlier: CallNode, histories: Histories): boolean {
  if (earlier.response.promptIds.length >= node.response.promptIds.length) return false
  const at = histories.of(earlier.turn)?.messages.length
  return at !== undefined && resembles(histories.message(node.turn, at), earlier.choice.message)
}
