import * as z from 'zod'
import type { Plug } from '../../lib/plug.ts'
import type { CallGraph, CallNode } from '../graph/call-graph.ts'
import { chainParts, type Builder, type MayTrain, type SamplePlan } from './builder.ts'
import { spliceChains } from './prefix-merging-splice.ts'

const Config = z.strictObject({
  kind: z.literal('prefix_merging'),
  splice: z
    .boolean()
    .default(false)
    .describe('Merge as NVIDIA Polar does, over answers that were re-rendered too; only to compare'),
  endOfTurnId: z.int().optional().describe('For splice: the token that ends a turn; found by itself when absent'),
  end_of_turn_token_id: z
    .int()
    .nullish()
    .describe("NVIDIA Polar's name of endOfTurnId; without splice it has no effect: exact merging needs no such token"),
})

/**
 * One row per chain of calls in which each continues the one before token for token. If several calls continue the same call,
 * the chain follows the child with the most trainable tokens below it; each other child begins its own row.
 */
export const prefixMerging: Plug<typeof Config, object, Builder> = {
  config: Config,
  create: ({ splice, endOfTurnId, end_of_turn_token_id: theirs }) => ({
    name: 'prefix_merging',
    mayMismatch: splice,
    plan: (graph, mayTrain) =>
      splice ? spliceChains(graph, mayTrain, endOfTurnId ?? theirs ?? undefined) : exactChains(graph, mayTrain),
  }),
}

function exactChains(graph: CallGraph, mayTrain: MayTrain): SamplePlan {
  const trainable = trainableBelow(graph.nodes, mayTrain)
  const heirs = new Map(graph.nodes.map((node) => [node, heirOf(node, trainable)]))
  const rows = graph.nodes
    .filter((node) => node.edge.verdict !== 'exact' || heirs.get(node.edge.parent) !== node)
    .map((head) => chainFrom(head, heirs))
    // Calls before the first trained call are part of its prompt; calls after the last trained call are dropped.
    .map((chain) => chain.slice(chain.findIndex(mayTrain), chain.findLastIndex(mayTrain) + 1))
    .filter((chain) => chain.length > 0)
    .map((chain) => ({ promptParts: 1, parts: chainParts(chain, mayTrain) }))
  return { rows, leftOut: new Map() }
}

/** Returns the number of trainable tokens of each call and its descendants. */
function trainableBelow(nodes: readonly CallNode[], mayTrain: MayTrain): Map<CallNode, number> {
  const below = new Map<CallNode, number>()
  // A child's prompt is longer than its parent's, so this order visits children first.
  const deepestFirst = nodes.toSorted((a, b) => b.response.promptIds.length - a.response.promptIds.length)
  for (const node of deepestFirst) {
    const own = mayTrain(node) ? node.choice.ids.length : 0
    const total = node.children.reduce((sum, child) => sum + (below.get(child) ?? 0), own)
    below.set(node, total)
  }
  return below
}

/** Returns the child with the most trainable tokens; the oldest among equals. */
function heirOf(node: CallNode, trainable: ReadonlyMap<CallNode, number>): CallNode | undefined {
  let best: CallNode | undefined
  for (const child of node.children) {
    if (best === undefined || (trainable.get(child) ?? 0) > (trainable.get(best) ?? 0)) best = child
  }
  return best
}

function chainFrom(head: CallNode, heirs: ReadonlyMap<CallNode, CallNode | undefined>): CallNode[] {
  const chain: CallNode[] = []
  for (let node: CallNode | undefined = head; node !== undefined; node = heirs.get(node)) chain.push(node)
  return chain
}
