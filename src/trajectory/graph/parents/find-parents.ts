import { countLeading } from '../../../lib/collections/count-leading.ts'
import { hasIdsAt, TokenHash } from '../../../lib/net/token-hash.ts'

/** The tokens of a call: its prompt and the answer of each choice. */
export interface TokenCall {
  promptIds: Int32Array
  choices: readonly { ids: Int32Array }[]
}

/** One choice of one call, by their indexes. */
export interface ParentRef {
  call: number
  choice: number
}

/** Number of the longest possible parents that are compared directly, before hashes are used. */
const TRIES = 8

/**
 * Finds, for each call, the choices whose prompt and answer together are the longest prefix of its prompt: usually none or
 * one, several if the same answer was sampled twice. Near-linear in the number of tokens, for any order of the calls. Calls
 * with the same parents get the same array.
 *
 * The parent of most calls is one of the longest sequences that fit into its prompt, and direct comparison of memory is the
 * fastest test. For all other calls, one running hash over the prompt is looked up at each possible length.
 */
export function findParents(calls: readonly TokenCall[]): (readonly ParentRef[])[] {
  const sequences = sequencesOf(calls)
  const hashes = new SequenceHashes(sequences)
  return calls.map(({ promptIds }) => {
    const fitting = countFitting(sequences, promptIds.length)
    const tried = sequences.slice(Math.max(0, fitting - TRIES), fitting).reverse()
    const first = tried.find((sequence) => isBeginning(sequence, promptIds))
    if (first !== undefined) return hashes.equalTo(first)
    const longest = sequences[fitting - TRIES - 1]
    return longest === undefined ? [] : longestMet(promptIds, longest.length, hashes)
  })
}

/** Prompt and answer of one choice. */
interface Sequence extends ParentRef {
  promptIds: Int32Array
  ids: Int32Array
  length: number
}

/** Sorts by length, shortest first. Drops empty answers, which no call can continue. */
function sequencesOf(calls: readonly TokenCall[]): Sequence[] {
  return calls
    .flatMap(({ promptIds, choices }, call) =>
      choices.map(({ ids }, choice) => ({ call, choice, promptIds, ids, length: promptIds.length + ids.length })),
    )
    .filter(({ promptIds, ids }) => promptIds.length > 0 && ids.length > 0)
    .toSorted((a, b) => a.length - b.length)
}

/** Returns the number of sequences that are at most as long as a prompt. */
function countFitting(sequences: readonly Sequence[], length: number): number {
  return countLeading(sequences.length, (i) => (sequences[i] as Sequence).length <= length)
}

function isBeginning({ promptIds, ids }: Sequence, prompt: Int32Array): boolean {
  // Sequences of one conversation diverge late, so comparing the end first is faster.
  return hasIdsAt(prompt, promptIds.length, ids) && hasIdsAt(prompt, 0, promptIds)
}

/** Index of sequences by hash. Hashes a sequence at most once, and only if another sequence has the same length. */
class SequenceHashes {
  readonly #byLength: ReadonlyMap<number, readonly Sequence[]>
  readonly #byHash = new Map<number, ReadonlyMap<number, readonly Sequence[]>>()
  readonly #equal = new Map<Sequence, readonly ParentRef[]>()
  /** Distinct lengths, ascending. */
  readonly lengths: readonly number[]

  constructor(sequences: readonly Sequence[]) {
    this.#byLength = Map.groupBy(sequences, ({ length }) => length)
    this.lengths = [...this.#byLength.keys()]
  }

  /** Returns sequences of this length with this hash. Their tokens may still differ. */
  find(length: number, hash: TokenHash): readonly Sequence[] {
    return this.#hashesOf(length).get(hash.key()) ?? []
  }

  /** Returns all sequences with identical tokens, `sequence` included. */
  equalTo(sequence: Sequence): readonly ParentRef[] {
    const known = this.#equal.get(sequence)
    if (known !== undefined) return known
    const sameLength = this.#byLength.get(sequence.length) ?? []
    const likely = sameLength.length === 1 ? sameLength : this.find(sequence.length, hashOf(sequence))
    const equal = likely.filter((other) => hasSameTokens(sequence, other))
    const refs = equal.map(({ call, choice }) => ({ call, choice }))
    for (const other of equal) this.#equal.set(other, refs)
    return refs
  }

  #hashesOf(length: number): ReadonlyMap<number, readonly Sequence[]> {
    const known = this.#byHash.get(length)
    if (known !== undefined) return known
    const hashes = Map.groupBy(this.#byLength.get(length) ?? [], (sequence) => hashOf(sequence).key())
    this.#byHash.set(length, hashes)
    return hashes
  }
}

function hashOf({ promptIds, ids }: Sequence): TokenHash {
  const hash = new TokenHash()
  hash.add(promptIds, 0, promptIds.length)
  hash.add(ids, 0, ids.length)
  return hash
}

function hasSameTokens(one: Sequence, other: Sequence): boolean {
  const [short, long] = one.promptIds.length <= other.promptIds.length ? [one, other] : [other, one]
  const split = long.promptIds.length - short.promptIds.length
  return (
    one.length === other.length &&
    hasIdsAt(long.promptIds, 0, short.promptIds) &&
    hasIdsAt(long.promptIds, short.promptIds.length, short.ids.subarray(0, split)) &&
    hasIdsAt(long.ids, 0, short.ids.subarray(split))
  )
}

/** `longest`: maximum length of the sequences that were not compared directly. */
function longestMet(prompt: Int32Array, longest: number, hashes: SequenceHashes): readonly ParentRef[] {
  const hash = new TokenHash()
  const met: (readonly Sequence[])[] = []
  let read = 0
  for (const length of hashes.lengths) {
    if (length > longest) break
    hash.add(prompt, read, length)
    read = length
    const found = hashes.find(length, hash)
    if (found.length > 0) met.push(found)
  }
  for (const candidates of met.reverse()) {
    const parent = candidates.find((sequence) => isBeginning(sequence, prompt))
    if (parent !== undefined) return hashes.equalTo(parent)
  }
  return []
}
