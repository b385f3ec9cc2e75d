import { countLeading } from '../../../lib/collections/count-leading.ts'
import type { CallNode } from '../call-graph.ts'
import { resembles } from './compare-answer.ts'
import type { Histories } from './histories.ts'

/** Maximum number of branches compared. */
const BRANCHES = 32

/**
 * Finds calls that a call continues by its messages, although its prompt continues only an older call by tokens. The harness
 * changed the end of the history, so the newer calls look like an abandoned branch.
 */
export class PassedOver {
  readonly #histories: Histories
  /** Maps a call to the last call of the branch that begins with it. */
  readonly #tips = new Map<CallNode, CallNode>()

  /** `nodes`: each behind its parent, with its children. */
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

  /** Returns the last calls of older branches with the same parent. */
  #tipsBeside({ edge, turn }: CallNode): CallNode[] {
    if (edge.verdict !== 'exact') return []
    const { children } = edge.parent
    const earlier = countBefore(children, turn.startedAt)
    return children.slice(Math.max(0, earlier - BRANCHES), earlier).map((sibling) => this.#tips.get(sibling) ?? sibling)
  }
}

/** Returns the number of calls that started before `time`. The calls are sorted by their start. */
function countBefore(nodes: readonly CallNode[], time: number): number {
  return countLeading(nodes.length, (i) => (nodes[i] as CallNode).turn.startedAt < time)
}

function repeatsAnswer(node: CallNode, earlier: CallNode, histories: Histories): boolean {
  if (earlier.response.promptIds.length >= node.response.promptIds.length) return false
  const at = histories.of(earlier.turn)?.messages.length
  return at !== undefined && resembles(histories.message(node.turn, at), earlier.choice.message)
}
