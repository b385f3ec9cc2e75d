import { commonPrefixOfIds } from '../../../lib/collections/common-prefix.ts'
import { TokenHash } from '../../../lib/net/token-hash.ts'
import { type Sequence, TokenBranches } from './token-branches.ts'

/** Number of tokens per edge of the trie. */
const BLOCK = 128

const NOTHING = new Int32Array()

/**
 * Finds the added call that shares the longest token prefix with a prompt; among equals, the latest. A trie over blocks of
 * tokens whose nodes are identified by the hash of all tokens before them, so that a search is one pass over the tokens. A
 * node with several branches stores them as a radix tree over the tokens of the next block.
 */
export class NearestCall {
  readonly #sequences: Sequence[] = []
  /** Nodes with a single branch, which is the common case. */
  readonly #single = new Map<number, { next: number; index: number }>()
  readonly #branched = new Map<number, TokenBranches>()

  /** Number of tokens compared individually. For tests. */
  get steps(): number {
    return this.#branched.values().reduce((sum, { steps }) => sum + steps, 0)
  }

  /** Returns the index of the call and the number of shared leading tokens. */
  find(promptIds: Int32Array): { index: number; common: number } | undefined {
    const hash = new TokenHash()
    let node = hash.key()
    let depth = 0
    while (depth + BLOCK <= promptIds.length) {
      hash.add(promptIds, depth, depth + BLOCK)
      const next = hash.key()
      if (!this.#single.has(next) && !this.#branched.has(next)) break
      node = next
      depth += BLOCK
    }
    // No call contains the whole next block, otherwise its node would exist.
    const end = Math.min(depth + BLOCK, promptIds.length)
    const index =
      this.#single.get(node)?.index ?? this.#branched.get(node)?.find({ promptIds, ids: NOTHING }, end).index
    return index === undefined
      ? undefined
      : { index, common: commonTokens(promptIds, this.#sequences[index] as Sequence) }
  }

  add(sequence: Sequence): void {
    const index = this.#sequences.push(sequence) - 1
    const hash = new TokenHash()
    const length = sequence.promptIds.length + sequence.ids.length
    let node = hash.key()
    let depth = 0
    for (; depth + BLOCK <= length; depth += BLOCK) {
      addRange(hash, sequence, depth, depth + BLOCK)
      this.#note(node, hash.key(), index, depth)
      node = hash.key()
    }
    // The last block, possibly empty: a call that ends at a node must be registered there too.
    addRange(hash, sequence, depth, length)
    this.#note(node, hash.key(), index, depth)
  }

  #note(node: number, next: number, index: number, depth: number): void {
    const branches = this.#branched.get(node)
    const single = this.#single.get(node)
    if (branches !== undefined) this.#addBranch(branches, index, depth)
    else if (single === undefined) this.#single.set(node, { next, index })
    else if (single.next === next) single.index = index
    else {
      this.#single.delete(node)
      const created = new TokenBranches(depth, this.#sequences[single.index] as Sequence)
      this.#branched.set(node, created)
      this.#addBranch(created, single.index, depth)
      this.#addBranch(created, index, depth)
    }
  }

  #addBranch(branches: TokenBranches, index: number, depth: number): void {
    const sequence = this.#sequences[index] as Sequence
    branches.add(sequence, index, Math.min(depth + BLOCK, sequence.promptIds.length + sequence.ids.length))
  }
}

/** Returns the number of leading tokens that `promptIds` shares with a call's prompt and answer. */
export function commonTokens(promptIds: Int32Array, { promptIds: first, ids }: Sequence): number {
  const inPrompt = commonPrefixOfIds(promptIds, first)
  return inPrompt < first.length ? inPrompt : inPrompt + commonPrefixOfIds(promptIds.subarray(inPrompt), ids)
}

function addRange(hash: TokenHash, { promptIds, ids }: Sequence, from: number, to: number): void {
  const split = promptIds.length
  if (from < split) hash.add(promptIds, from, Math.min(to, split))
  if (to > split) hash.add(ids, Math.max(from, split) - split, to - split)
}
