import type { CallNode } from '../call-graph.ts'

interface Link {
  node: CallNode
  /** Number of ancestors. */
  depth: number
  parent: Link | undefined
  /** A more distant ancestor, so that any ancestor is reached in a logarithmic number of steps. */
  jump: Link
}

/** Finds ancestors over `exact` edges by their distance. The edges must not change between calls. */
export class Ancestry {
  readonly #links = new Map<CallNode, Link>()

  /** Returns the number of ancestors. */
  depthOf(node: CallNode): number {
    return this.#linkOf(node).depth
  }

  /** Returns the ancestor at `distance`; the call itself for 0. Undefined if there are fewer ancestors. */
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

/** Skew-binary list: the length of jumps doubles with the distance. */
function createLink(node: CallNode, parent: Link | undefined): Link {
  const link = { node, depth: (parent?.depth ?? -1) + 1, parent } as Link
  if (parent === undefined) link.jump = link
  else {
    const { jump } = parent
    link.jump = parent.depth - jump.depth === jump.depth - jump.jump.depth ? jump.jump : parent
  }
  return link
}
