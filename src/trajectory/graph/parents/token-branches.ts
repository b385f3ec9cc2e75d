/** The tokens of a call: prompt, then answer. */
export interface Sequence {
  promptIds: Int32Array
  ids: Int32Array
}

/** An edge of the radix tree: tokens that all sequences below it share. */
interface Branch {
  /** One of the sequences below; provides the tokens of the branch. */
  sequence: Sequence
  /** End of the branch, in tokens from the start of the sequence. */
  end: number
  /** Index of the latest sequence below. */
  latest: number
  /** Branches by the token that follows `end`. */
  next: Map<number, Branch>
}

/**
 * Radix tree over the tokens behind one position. `add` and `find` visit at most one branch per token, for any number of
 * sequences.
 */
export class TokenBranches {
  readonly #first: Branch
  #steps = 0

  /** `at`: the position in tokens. All sequences share the tokens before it. */
  constructor(at: number, sequence: Sequence) {
    this.#first = { sequence, end: at, latest: -1, next: new Map() }
  }

  /** Number of tokens and branches visited so far. For tests. */
  get steps(): number {
    return this.#steps
  }

  /** Adds the tokens of a sequence up to position `end`. Indexes ascend from one call to the next. */
  add(sequence: Sequence, index: number, end: number): void {
    let branch = this.#first
    branch.latest = index
    while (branch.end < end) {
      const token = tokenAt(sequence, branch.end)
      const next = branch.next.get(token)
      if (next === undefined) {
        branch.next.set(token, { sequence, end, latest: index, next: new Map() })
        return
      }
      const common = this.#sameUntil(next, sequence, branch.end, Math.min(next.end, end))
      branch = common < next.end ? split(branch, next, common) : next
      branch.latest = index
    }
  }

  /** Returns the latest sequence that shares the most tokens, and the end of the shared tokens. */
  find(sequence: Sequence, end: number): { index: number; end: number } {
    let branch = this.#first
    while (branch.end < end) {
      const next = branch.next.get(tokenAt(sequence, branch.end))
      if (next === undefined) break
      const common = this.#sameUntil(next, sequence, branch.end, Math.min(next.end, end))
      if (common < next.end) return { index: next.latest, end: common }
      branch = next
    }
    return { index: branch.latest, end: branch.end }
  }

  #sameUntil(branch: Branch, sequence: Sequence, from: number, to: number): number {
    let at = from
    while (at < to && tokenAt(branch.sequence, at) === tokenAt(sequence, at)) at += 1
    this.#steps += at - from + 1
    return at
  }
}

/** Splits a branch at `end`. */
function split(before: Branch, branch: Branch, end: number): Branch {
  const first: Branch = { ...branch, end, next: new Map([[tokenAt(branch.sequence, end), branch]]) }
  before.next.set(tokenAt(branch.sequence, before.end), first)
  return first
}

function tokenAt({ promptIds, ids }: Sequence, at: number): number {
  return (at < promptIds.length ? promptIds[at] : ids[at - promptIds.length]) as number
}
