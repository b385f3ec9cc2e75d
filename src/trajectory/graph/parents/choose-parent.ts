import { countLeading } from '../../../lib/collections/count-leading.ts'
import type { Turn } from '../../../model/turn.ts'
import type { CallNode } from '../call-graph.ts'
import { byAge, deliveryRank } from '../turn-order.ts'

/**
 * Chooses the parent among several calls with identical tokens: a delivered call without failure, and the last one that had
 * ended when the child started. The candidates are sorted once for all children.
 */
export class ParentChoice<N extends CallNode> {
  /** Candidates that ended, earliest end first. */
  readonly #ended: readonly N[]
  readonly #last: N

  /** `candidates` must not be empty. */
  constructor(candidates: readonly N[]) {
    const best = candidates.reduce((most, node) => Math.max(most, rankOf(node)), 0)
    const sorted = candidates.filter((node) => rankOf(node) === best).toSorted(byEnd)
    this.#ended = sorted.filter(({ turn }) => turn.endedAt !== undefined)
    this.#last = sorted.at(-1) as N
  }

  for({ startedAt }: Turn): N {
    const ended = countLeading(this.#ended.length, (i) => ((this.#ended[i] as N).turn.endedAt as number) <= startedAt)
    return this.#ended[ended - 1] ?? this.#last
  }
}

function rankOf({ turn }: CallNode): number {
  return 2 * deliveryRank(turn) + Number(turn.failure === undefined)
}

/** Among choices with the same end, the first choice comes last. */
function byEnd(a: CallNode, b: CallNode): number {
  return (a.turn.endedAt ?? 0) - (b.turn.endedAt ?? 0) || b.choice.index - a.choice.index || byAge(a.turn, b.turn)
}
