import type { SessionRecord } from '../../model/session.ts'
import type { Label } from '../../model/sample.ts'
import type { CallNode, RequestReader } from './call-graph.ts'

export interface Labelling {
  label: Label
  evidence: string[]
}

/** What each call was for. The nodes' edges and children are known, their labels are not. */
export function labelCalls<N extends CallNode>(
  nodes: readonly N[],
  _session: SessionRecord,
  _reader: RequestReader,
): Map<N, Labelling> {
  return new Map(nodes.map((node) => [node, { label: 'main', evidence: [] }]))
}
