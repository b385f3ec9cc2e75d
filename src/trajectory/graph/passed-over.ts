import type { CallNode } from './call-graph.ts'
import { resembles } from './compare-answer.ts'
import type { Histories } from './histories.ts'

/** How many branches are looked at. */
const BRANCHES = 32

/**
 * Calls that this one goes on from by its messages, though its prompt literally begins with an older one only: the end of
 * the history came back changed, so that newer calls look like a branch that was left behind.
 */
export function passedOverBy(node: CallNode, histories: Histories): CallNode[] {
  return tipsBeside(node).filter((tip) => repeatsAnswer(node, tip, histories))
}

/** Last calls of branches that began where this call's does, but earlier. */
function tipsBeside({ edge, turn }: CallNode): CallNode[] {
  if (edge.verdict !== 'exact') return []
  const earlier = edge.parent.children.filter((sibling) => sibling.turn.startedAt < turn.startedAt)
  return earlier.slice(-BRANCHES).map((sibling) => {
    let last = sibling
    while (last.children.length > 0) last = last.children.at(-1) as CallNode
    return last
  })
}

function repeatsAnswer(node: CallNode, earlier: CallNode, histories: Histories): boolean {
  if (earlier.response.promptIds.length >= node.response.promptIds.length) return false
  const at = histories.of(earlier.turn)?.messages.length
  return at !== undefined && resembles(histories.message(node.turn, at), earlier.choice.message)
}
