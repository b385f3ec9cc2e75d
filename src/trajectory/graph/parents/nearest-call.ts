import { commonPrefixOfIds } from '../../../lib/collections/common-prefix.ts'
import { TokenHash } from '../../../lib/net/token-hash.ts'
import { type Sequence, WaysOn } from './ways-on.ts'

/** Tokens that make one step of the trie. */
const BLOCK = 128

const NOTHING = new Int32Array()

/**
 * Finds the call whose tokens a prompt shares the longest beginning with, of those added so far; the latest of equals. A
 * trie over blocks of tokens, its nodes named by the hash of all tokens up to them, so that it costs one pass over the
 * tokens. A node with several ways on keeps them as a radix tree over the tokens of the next block.
 */
export class NearestCall {
  readonly #sequences: Sequence[] = []
  /** Of a node with one way on, which most have. */
  readonly #only = new Map<number, { next: number; index: number }>()
  readonly #several = new Map<number, WaysOn>()

  /** Tokens of blocks that were compared one by one. For tests. */
  get steps(): number {
    return this.#several.values().reduce((sum, { steps }) => sum + steps, 0)
  }

  /** The position of the call among those added, and how many leading tokens are shared. */
  find(promptIds: Int32Array): { index: number; common: number } | undefined {
    const hash = new TokenHash()
    let node = hash.key()
    let depth = 0
    while (depth + BLOCK <= promptIds.length) {
      hash.add(promptIds, depth, depth + BLOCK)
      const next = hash.key()
      if (!this.#only.has(next) && !this.#several.has(next)) break
      node = next
      depth += BLOCK
    }
    // No call has all of the next block, or the deepest node would be a deeper one.
    const end = Math.min(depth + BLOCK, promptIds.length)
    const index = this.#only.get(node)?.index ?? this.#several.get(node)?.find({ promptIds, ids: NOTHING }, end).index
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
    // What is left of it, even if that is nothing: a call that ends at a node goes by it too.
    addRange(hash, sequence, depth, length)
    this.#note(node, hash.key(), index, depth)
  }

  #note(node: number, next: number, index: number, depth: number): void {
    const several = this.#several.get(node)
    const only = this.#only.get(node)
    if (several !== undefined) this.#addWay(several, index, depth)
    else if (only === undefined) this.#only.set(node, { next, index })
    else if (only.next === next) only.index = index
    else {
      this.#only.delete(node)
      const ways = new WaysOn(depth, this.#sequences[only.index] as Sequence)
      this.#several.set(node, ways)
      this.#addWay(ways, only.index, depth)
      this.#addWay(ways, index, depth)
    }
  }

  #addWay(ways: WaysOn, index: number, depth: number): void {
    const sequence = this.#sequences[index] as Sequence
    ways.add(sequence, index, Math.min(depth + BLOCK, sequence.promptIds.length + sequence.ids.length))
  }
}

/** How many leading tokens of `promptIds` are those of a call's prompt and answer. */
export function commonTokens(promptIds: Int32Array, { promptIds: first, ids }: Sequence): number {
  const inPrompt = commonPrefixOfIds(promptIds, first)
  return inPrompt < first.length ? inPrompt : inPrompt + commonPrefixOfIds(promptIds.subarray(inPrompt), ids)
}

function addRange(hash: TokenHash, { promptIds, ids }: Sequence, from: number, to: number): void {
  const split = promptIds.length
  if (from < split) hash.add(promptIds, from, Math.min(to, split))
  if (to > split) hash.add(ids, Math.max(from, split) - split, to - split)
}
