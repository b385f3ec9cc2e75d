import * as z from 'zod'
import type { Plug } from '../../lib/plug.ts'
import type { CallNode } from '../graph/call-graph.ts'
import { NearestCall } from '../graph/parents/nearest-call.ts'
import { chainParts, type Builder, type MayTrain, type Row } from './builder.ts'

const Config = z.strictObject({ kind: z.literal('prefix_tree') })

/**
 * One row per path from a root to a leaf. A token that several rows contain is trained only in the first of them. Each row
 * records the length of the prefix that it shares with an earlier row.
 */
export const prefixTree: Plug<typeof Config, object, Builder> = {
  config: Config,
  create: () => ({
    name: 'prefix_tree',
    plan(graph, mayTrain) {
      const paths = graph.nodes
        .filter((node) => node.edge.verdict !== 'exact')
        .flatMap((root) => pathsFrom(root))
        .map((path) => path.slice(0, path.findLastIndex(mayTrain) + 1))
      const rows: Row[] = []
      const nearest = new NearestCall()
      const trained = new Set<CallNode>()
      for (const path of paths) {
        const isNew: MayTrain = (node) => mayTrain(node) && !trained.has(node)
        const leaf = path.at(-1)
        if (leaf === undefined || !path.some(isNew)) continue
        const sequence = { promptIds: leaf.response.promptIds, ids: leaf.choice.ids }
        const found = nearest.find(sequence.promptIds)
        nearest.add(sequence)
        rows.push({
          promptParts: 1,
          parts: chainParts(path, isNew),
          shared: found?.common ? { row: found.index, length: found.common } : undefined,
        })
        for (const node of path) trained.add(node)
      }
      return { rows, leftOut: new Map() }
    },
  }),
}

/** Returns every path from a call to a leaf. Iterative, because a session may be deeper than the call stack. */
function pathsFrom(root: CallNode): CallNode[][] {
  const paths: CallNode[][] = []
  const open: CallNode[][] = [[root]]
  for (let path = open.pop(); path !== undefined; path = open.pop()) {
    let tip = path.at(-1) as CallNode
    while (tip.children.length === 1) path.push((tip = tip.children[0] as CallNode))
    if (tip.children.length === 0) paths.push(path)
    else open.push(...tip.children.toReversed().map((child) => [...path, child]))
  }
  return paths
}
