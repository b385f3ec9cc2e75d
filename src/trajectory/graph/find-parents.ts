import { hasIdsAt, TokenHash } from '../../lib/token-hash.ts'

/** A call as its tokens: what the engine read, and what it wrote for each choice. */
export interface TokenCall {
  promptIds: Int32Array
  choices: readonly { ids: Int32Array }[]
}

/** One choice of one call, by their positions in the list that was given. */
export interface ParentRef {
  call: number
  choice: number
}

/** How many of the longest possible parents are compared before hashes are asked. */
const TRIES = 8

/**
 * For each call the choices whose prompt and answer together are the longest beginning of its prompt: usually none or one,
 * several where the same answer was sampled twice. Near-linear in the number of tokens, whatever the order of the calls.
 *
 * The parent of most calls is one of the longest sequences that fit into its prompt, and comparing memory is the fastest
 * thing there is. For the others one running hash over the prompt meets every possible parent on its way.
 */
export function findParents(calls: readonly TokenCall[]): ParentRef[][] {
  const sequences = sequencesOf(calls)
  let byHash: ReadonlyMap<number, readonly Sequence[]> | undefined
  return calls.map(({ promptIds }) => {
    const fitting = countFitting(sequences, promptIds.length)
    const tried = sequences.slice(Math.max(0, fitting - TRIES), fitting).reverse()
    const first = tried.find((sequence) => isBeginning(sequence, promptIds))
    if (first !== undefined) return sameAs(first, sequences, fitting, promptIds)
    if (fitting <= TRIES) return []
    byHash ??= hashAll(sequences)
    return longestMet(promptIds, sequences.slice(0, fitting - TRIES), byHash)
  })
}

/** What the engine read and wrote for one choice. */
interface Sequence extends ParentRef {
  promptIds: Int32Array
  ids: Int32Array
  length: number
}

/** Shortest first. An answer without tokens is no place to go on from. */
function sequencesOf(calls: readonly TokenCall[]): Sequence[] {
  return calls
    .flatMap(({ promptIds, choices }, call) =>
      choices.map(({ ids }, choice) => ({ call, choice, promptIds, ids, length: promptIds.length + ids.length })),
    )
    .filter(({ promptIds, ids }) => promptIds.length > 0 && ids.length > 0)
    .toSorted((a, b) => a.length - b.length)
}

/** How many sequences are no longer than a prompt. */
function countFitting(sequences: readonly Sequence[], length: number): number {
  let [low, high] = [0, sequences.length]
  while (low < high) {
    const middle = (low + high) >>> 1
    if ((sequences[middle] as Sequence).length <= length) low = middle + 1
    else high = middle
  }
  return low
}

function isBeginning({ promptIds, ids }: Sequence, prompt: Int32Array): boolean {
  // Unequal sequences of one conversation part late: the end tells sooner.
  return hasIdsAt(prompt, promptIds.length, ids) && hasIdsAt(prompt, 0, promptIds)
}

/** All that are equal to one; they lie next to each other. */
function sameAs(first: Sequence, sequences: readonly Sequence[], fitting: number, prompt: Int32Array): ParentRef[] {
  const same: ParentRef[] = []
  for (let at = fitting - 1; at >= 0; at--) {
    const sequence = sequences[at] as Sequence
    if (sequence.length < first.length) break
    if (sequence.length === first.length && isBeginning(sequence, prompt)) same.push(refOf(sequence))
  }
  return same
}

function hashAll(sequences: readonly Sequence[]): Map<number, Sequence[]> {
  return Map.groupBy(sequences, ({ promptIds, ids }) => {
    const hash = new TokenHash()
    hash.add(promptIds, 0, promptIds.length)
    hash.add(ids, 0, ids.length)
    return hash.key()
  })
}

function longestMet(
  prompt: Int32Array,
  fitting: readonly Sequence[],
  byHash: ReadonlyMap<number, readonly Sequence[]>,
): ParentRef[] {
  const hash = new TokenHash()
  const met: Sequence[][] = []
  let read = 0
  for (const { length } of fitting) {
    if (length === read) continue
    hash.add(prompt, read, length)
    read = length
    const found = byHash.get(hash.key())?.filter((sequence) => sequence.length === length)
    if (found !== undefined && found.length > 0) met.push(found)
  }
  // Equal hashes are a hint, no proof.
  for (const candidates of met.reverse()) {
    const verified = candidates.filter((sequence) => isBeginning(sequence, prompt))
    if (verified.length > 0) return verified.map(refOf)
  }
  return []
}

function refOf({ call, choice }: Sequence): ParentRef {
  return { call, choice }
}
