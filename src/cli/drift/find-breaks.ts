import * as z from 'zod'
import { breakOf, type CallGraph, type CallNode, type BreakReason } from '../../trajectory/graph/call-graph.ts'

/** A call whose prompt does not continue the previous call token by token. */
export interface Break {
  node: CallNode
  from: CallNode
  reason: BreakReason
  detail: string
  /** Index of the first token that differs. */
  at: number
  /** Prompt and answer of `from`, which the prompt should begin with. */
  before: Int32Array
  /** The prompt. */
  now: Int32Array
  /** The recorded reason why the session did not continue tokens; absent if it did, and in records of earlier versions. */
  uncontinued?: string
}

export interface DriftSummary {
  calls: number
  /** Calls that continue an earlier call; `exact` counts those that continue the latest call token by token. */
  edges: number
  exact: number
  reasons: Partial<Record<BreakReason, number>>
}

/** Returns at most one break per turn: its choices share a prompt. */
export function findBreaks(graph: CallGraph, origin: Readonly<Record<string, unknown>> = {}): Break[] {
  const uncontinued = ContinuationOff.safeParse(origin['continuation']).data?.why
  return oneEach(graph).flatMap((node) => {
    const broken = breakOf(node.edge)
    if (broken === undefined) return []
    const { from, reason, detail, commonTokens } = broken
    const before = new Int32Array(from.response.promptIds.length + from.choice.ids.length)
    before.set(from.response.promptIds)
    before.set(from.choice.ids, from.response.promptIds.length)
    return [{ node, from, reason, detail, at: commonTokens, before, now: node.response.promptIds, uncontinued }]
  })
}

const ContinuationOff = z.looseObject({ via: z.literal('off'), why: z.string() })

export function summariseDrift(graph: CallGraph): DriftSummary {
  const edges = oneEach(graph).map(({ edge }) => edge)
  const reasons: DriftSummary['reasons'] = {}
  for (const edge of edges) {
    const reason = breakOf(edge)?.reason
    if (reason !== undefined) reasons[reason] = (reasons[reason] ?? 0) + 1
  }
  return {
    calls: edges.length,
    edges: edges.filter(({ verdict }) => verdict !== 'root').length,
    exact: edges.filter((edge) => edge.verdict === 'exact' && edge.passedOver === undefined).length,
    reasons,
  }
}

function oneEach({ nodes }: CallGraph): CallNode[] {
  return nodes.filter((node, i) => nodes[i - 1]?.turn !== node.turn)
}

/** Number of a call, counted from 1 as in `polar show`. */
export function callNumber({ turn }: CallNode): number {
  return turn.index + 1
}
