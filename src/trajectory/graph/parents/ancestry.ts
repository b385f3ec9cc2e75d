import type { CallNode } from '../call-graph.ts'

interface Link {
  node: CallNode
  /** How many calls it goes on from. */
  depth: number
  parent: Link | undefined
  /** An ancestor further up, so that any ancestor is reached in a logarithmic number of steps. */
  jump: Link
}

/** The calls that a call goes on from literally, by their distance. The edges must not change in between. */
export class Ancestry {
  readonly #links = new Map<CallNode, Link>()

  /** How many calls a call goes on from, one behind the other. */
  depthOf(node: CallNode): number {
    return this.#linkOf(node).depth
  }

  /** The call `distance` steps up; the call itself for 0. Undefined where there are fewer. */
  ancestorOf(node: CallNode, distance: number): CallNode | undefined {
    let link = this.#linkOf(node)
    const depth = link.depth - distance
    if (depth < 0) return undefined
    while (link.depth > depth) link = link.jump.depth >= depth ? link.jump : (link.parent as Link)
    return link.node
  }

  #linkOf(node: CallNode): Link {
    const unlinked: CallNode[] = []
    let link = this.#links.get(node)
    for (let at: CallNode | undefined = node; link === undefined && at !== undefined;) {
      unlinked.push(at)
      at = at.edge.verdict === 'exact' ? at.edge.parent : undefined
      link = at && this.#links.get(at)
    }
    for (const next of unlinked.reverse()) {
      link = createLink(next, link)
      this.#links.set(next, link)
    }
    return link as Link
  }
}

/** Jumps double in length on the way up (a skew-binary list). */
function createLink(node: CallNode, parent: Link | undefined): Link {
  const link = { node, depth: (parent?.depth ?? -1) + 1, parent } as Link
  if (parent === undefined) link.jump = link
  else {
    const { jump } = parent
    link.jump = parent.depth - jump.depth === jump.depth - jump.jump.depth ? jump.jump : parent
  }
  return link
}
