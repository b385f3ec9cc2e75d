/** The tokens of a call: prompt, then answer. */
export interface Sequence {
  promptIds: Int32Array
  ids: Int32Array
}

/** A stretch of tokens that all sequences below it share. */
interface Way {
  /** One of the sequences that go this way; its tokens stand for all of them. */
  sequence: Sequence
  /** Where the way ends, counted in tokens of the sequence. */
  end: number
  /** The latest sequence that goes this way. */
  latest: number
  /** By the token that follows `end`. */
  next: Map<number, Way>
}

/**
 * Radix tree over the tokens that follow one place. Adding and finding a sequence visits at most one way per token, however
 * many sequences there are.
 */
export class WaysOn {
  readonly #first: Way
  #steps = 0

  /** `at`: the place, counted in tokens; all sequences share the tokens before it. */
  constructor(at: number, sequence: Sequence) {
    this.#first = { sequence, end: at, latest: -1, next: new Map() }
  }

  /** Tokens and ways that were visited so far. For tests. */
  get steps(): number {
    return this.#steps
  }

  /** Adds the tokens of a sequence up to position `end`. Indexes ascend from one call to the next. */
  add(sequence: Sequence, index: number, end: number): void {
    let way = this.#first
    way.latest = index
    while (way.end < end) {
      const token = tokenAt(sequence, way.end)
      const next = way.next.get(token)
      if (next === undefined) {
        way.next.set(token, { sequence, end, latest: index, next: new Map() })
        return
      }
      const common = this.#sameUntil(next, sequence, way.end, Math.min(next.end, end))
      way = common < next.end ? split(way, next, common) : next
      way.latest = index
    }
  }

  /** The latest of the sequences that share the most tokens, and where the shared tokens end. */
  find(sequence: Sequence, end: number): { index: number; end: number } {
    let way = this.#first
    while (way.end < end) {
      const next = way.next.get(tokenAt(sequence, way.end))
      if (next === undefined) break
      const common = this.#sameUntil(next, sequence, way.end, Math.min(next.end, end))
      if (common < next.end) return { index: next.latest, end: common }
      way = next
    }
    return { index: way.latest, end: way.end }
  }

  #sameUntil(way: Way, sequence: Sequence, from: number, to: number): number {
    let at = from
    while (at < to && tokenAt(way.sequence, at) === tokenAt(sequence, at)) at += 1
    this.#steps += at - from + 1
    return at
  }
}

/** Ends a way at `end` and lets the rest of it follow. */
function split(before: Way, way: Way, end: number): Way {
  const first: Way = { ...way, end, next: new Map([[tokenAt(way.sequence, end), way]]) }
  before.next.set(tokenAt(way.sequence, before.end), first)
  return first
}

function tokenAt({ promptIds, ids }: Sequence, at: number): number {
  return (at < promptIds.length ? promptIds[at] : ids[at - promptIds.length]) as number
}
