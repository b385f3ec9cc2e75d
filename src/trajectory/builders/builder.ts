import type { CallGraph, CallNode } from '../graph/call-graph.ts'
import type { ExclusionReason } from '../../model/sample.ts'

/** Consecutive tokens of a row: the answer of a call, or the prompt tokens before it. */
export interface Part {
  ids: Int32Array
  /** The call that sampled the tokens or whose prompt contains them. */
  call: CallNode
  /** Whether `call` sampled the tokens. */
  isSampled: boolean
  /** Whether the row trains the tokens. Requires `isSampled`. */
  isTrained: boolean
}

/** Plan of one sample. Its tokens are views of recorded arrays. */
export interface Row {
  /** Number of leading parts that form the prompt. */
  promptParts: number
  parts: readonly Part[]
  /** Leading tokens that this row shares with an earlier row of the plan. */
  shared?: { row: number; length: number }
}

export type MayTrain = (node: CallNode) => boolean

export interface SamplePlan {
  rows: Row[]
  /** Trainable calls that the builder leaves out, with its reason. */
  leftOut: Map<CallNode, { reason: ExclusionReason; detail: string }>
}

/**
 * Arranges calls into training samples. Pure. The caller decides beforehand which calls may be trained, and checks afterwards
 * that every trained token has the context that the engine read.
 */
export interface Builder {
  readonly name: string
  /** Whether trained tokens may have another context than the engine read. They are then counted instead of rejected. */
  readonly mayMismatch?: boolean
  plan(graph: CallGraph, mayTrain: MayTrain): SamplePlan
}

/** Returns the parts of a chain of calls in which each continues the one before token for token. */
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
