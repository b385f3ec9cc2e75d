import type { CallGraph, CallNode } from '../graph/call-graph.ts'
import type { MayTrain, Part, SamplePlan, Row } from './builder.ts'
import { ChainTips } from './prefix-merging-splice-tips.ts'

const LOST = { reason: 'lost-by-splice', detail: 'splicing stopped before this call' } as const

/**
 * NVIDIA Polar's merge, for comparison. Chains calls if the prompt of one begins with the *prompt* of the one before. Replaces
 * the rendered answer between them, up to the first end-of-turn token, by the sampled answer, which may differ from what the
 * engine read. A chain ends at the first call that cannot be spliced; its further calls are lost.
 */
export function spliceChains(graph: CallGraph, mayTrain: MayTrain, endOfTurnId: number | undefined): SamplePlan {
  const leftOut: SamplePlan['leftOut'] = new Map()
  const rows: Row[] = []
  const calls = graph.nodes.filter(({ choice, response }) => choice.index === 0 && response.promptIds.length > 0)
  const isCall = new Set(calls)
  for (const node of graph.nodes) if (!isCall.has(node)) leftOut.set(node, LOST)
  for (const chain of chainsOf(calls)) {
    const { parts, lost } = splice(chain, mayTrain, endOfTurnId ?? endOfTurn(chain))
    for (const node of lost) leftOut.set(node, LOST)
    if (parts.some((part) => part.isTrained)) rows.push({ promptParts: 1, parts })
  }
  return { rows, leftOut }
}

/**
 * Chains calls in the order of their end. A call joins the chain with the longest last prompt that its prompt begins
 * with.
 */
function chainsOf(calls: readonly CallNode[]): CallNode[][] {
  const chains: CallNode[][] = []
  const tips = new ChainTips()
  for (const call of calls.toSorted((a, b) => (a.turn.endedAt ?? 0) - (b.turn.endedAt ?? 0))) {
    const joined = tips.find(call.response.promptIds)
    if (joined !== undefined) tips.remove(joined)
    const chain = joined ?? []
    if (joined === undefined) chains.push(chain)
    chain.push(call)
    tips.add(chain)
  }
  return chains
}

function endOfTurn(chain: readonly CallNode[]): number | undefined {
  return chain
    .find(({ choice }) => choice.finishReason === 'stop' || choice.finishReason === 'tool-calls')
    ?.choice.ids.at(-1)
}

function splice(
  chain: readonly CallNode[],
  mayTrain: MayTrain,
  endId: number | undefined,
): { parts: Part[]; lost: readonly CallNode[] } {
  const parts: Part[] = []
  let before: CallNode | undefined
  for (const [index, call] of chain.entries()) {
    const between = before === undefined ? call.response.promptIds : interstitial(before, call, endId)
    if (between === undefined) return { parts, lost: chain.slice(index) }
    parts.push(
      { ids: between, call, isSampled: false, isTrained: false },
      { ids: call.choice.ids, call, isSampled: true, isTrained: mayTrain(call) },
    )
    before = call
  }
  return { parts, lost: [] }
}

/** Returns the tokens of the next prompt behind the rendered answer; undefined if its end cannot be found. */
function interstitial(before: CallNode, call: CallNode, endId: number | undefined): Int32Array | undefined {
  const tail = call.response.promptIds.subarray(before.response.promptIds.length)
  const at = endId === undefined ? -1 : tail.indexOf(endId)
  if (at === -1) return undefined
  return before.choice.ids.at(-1) === endId ? tail.subarray(at + 1) : tail.subarray(at)
}
