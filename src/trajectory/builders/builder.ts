import type { CallGraph, CallNode } from '../graph/call-graph.ts'
import type { ExclusionReason } from '../../model/sample.ts'

/** Consecutive tokens of a row: those a call sampled, or what stands between. */
export interface Part {
  ids: Int32Array
  /** The call that sampled them, or whose prompt they are from. */
  call: CallNode
  /** Whether `call` sampled them. */
  isSampled: boolean
  /** Whether they are trained here; only sampled tokens can be. */
  isTrained: boolean
}

/** One sample to be: its tokens as parts of recorded arrays, nothing copied yet. */
export interface Row {
  /** How many leading parts are the prompt. */
  promptParts: number
  parts: readonly Part[]
  /** Leading tokens that an earlier row of the plan has too. */
  shared?: { row: number; length: number }
}

export type MayTrain = (node: CallNode) => boolean

export interface Plan {
  rows: Row[]
  /** Calls that could have been trained and are not, with the builder's own reason. */
  leftOut: Map<CallNode, { reason: ExclusionReason; detail: string }>
}

/**
 * Decides which calls go into one training sample together. Pure. A builder only arranges: what may be trained is decided
 * before it, and that every trained token has the context the engine saw is checked after it.
 */
export interface Builder {
  readonly name: string
  /** True for a builder that puts calls into contexts they did not have; then those tokens are counted, not refused. */
  readonly mayMismatch?: boolean
  plan(graph: CallGraph, mayTrain: MayTrain): Plan
}

/** The parts of calls that each go on literally from the one before. */
export function chainParts(chain: readonly CallNode[], isTrained: MayTrain): Part[] {
  let read = 0
  return chain.flatMap((call) => {
    const { promptIds } = call.response
    const between = promptIds.subarray(read)
    read = promptIds.length + call.choice.ids.length
    return [
      { ids: between, call, isSampled: false, isTrained: false },
      { ids: call.choice.ids, call, isSampled: true, isTrained: isTrained(call) },
    ]
  })
}
