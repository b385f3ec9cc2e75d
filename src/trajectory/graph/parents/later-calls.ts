import type { Turn } from '../../../model/turn.ts'
import type { CallNode } from '../call-graph.ts'
import { identityOf } from '../labels/find-summary.ts'

/** Calls of one agent with one label, in the order of the conversation. */
interface Calls {
  nodes: CallNode[]
  /** For each call, the latest start among it and the calls before it. */
  latestStart: number[]
}

/**
 * Finds, for a call of one conversation, the last call of the same agent that started after it. Skips calls of other agents
 * and calls that started too early without visiting each.
 */
export class LaterCalls {
  readonly #labelOf: (node: CallNode) => string | undefined
  readonly #calls = new Map<string, Calls>()
  readonly #indexes = new Map<Turn, number>()

  constructor(conversation: readonly CallNode[], labelOf: (node: CallNode) => string | undefined) {
    this.#labelOf = labelOf
    for (const [index, node] of conversation.entries()) {
      if (!this.#indexes.has(node.turn)) this.#indexes.set(node.turn, index)
      const key = this.#keyOf(node)
      const calls = this.#calls.get(key) ?? { nodes: [], latestStart: [] }
      this.#calls.set(key, calls)
      calls.nodes.push(node)
      calls.latestStart.push(Math.max(calls.latestStart.at(-1) ?? 0, node.turn.startedAt))
    }
  }

  /** Returns the last call that `matches`, started after the end of `node` and is not an ancestor of `node`. */
  lastAfter(node: CallNode, matches: (other: CallNode) => boolean): CallNode | undefined {
    const end = node.turn.endedAt ?? node.turn.startedAt
    const { nodes, latestStart } = this.#calls.get(this.#keyOf(node)) as Calls
    let ancestors: ReadonlySet<Turn> | undefined
    for (let i = nodes.length - 1; i >= 0 && (latestStart[i] as number) >= end; i--) {
      const other = nodes[i] as CallNode
      if (other.turn.startedAt < end || !matches(other)) continue
      if (this.#indexOf(other) > this.#indexOf(node)) return other
      // A call comes behind its ancestors, so only calls before `node` can be ancestors.
      ancestors ??= ancestorsOf(node)
      if (!ancestors.has(other.turn)) return other
    }
    return undefined
  }

  #keyOf(node: CallNode): string {
    return JSON.stringify([this.#labelOf(node), ...identityOf(node)])
  }

  #indexOf({ turn }: CallNode): number {
    return this.#indexes.get(turn) as number
  }
}

/** Returns the calls that a call continues, by tokens or by messages. Some logs record a call before its parent. */
function ancestorsOf(node: CallNode): Set<Turn> {
  const found = new Set<Turn>()
  for (let { edge } = node; edge.verdict !== 'root';) {
    const parent: CallNode = edge.verdict === 'exact' ? edge.parent : edge.from
    if (found.has(parent.turn)) break
    found.add(parent.turn)
    edge = parent.edge
  }
  return found
}
