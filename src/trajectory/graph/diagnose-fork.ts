import type { CallNode, Edge, RequestReader } from './call-graph.ts'

/** What is known of a call that goes on literally from none. */
export interface ForkSituation {
  /** The call it shares most leading tokens with. */
  from: CallNode
  commonTokens: number
  /** All calls that started before it, oldest first. */
  earlier: readonly CallNode[]
}

/** Whether a conversation goes on or begins, and what broke the prefix. */
export function diagnoseFork(_node: CallNode, situation: ForkSituation, _reader: RequestReader): Edge {
  const { from, commonTokens } = situation
  return { verdict: 'forked', from, reason: 'unknown', detail: '', commonTokens }
}
