import { commonPrefixOfIds } from '../../lib/common-prefix.ts'
import { TokenHash } from '../../lib/token-hash.ts'

/** Tokens that make one step of the trie. */
const BLOCK = 128

/** The tokens of a call: prompt, then answer. */
export interface Sequence {
  promptIds: Int32Array
  ids: Int32Array
}

/**
 * Finds the call whose tokens a prompt shares the longest beginning with, of those added so far; the latest of equals. A
 * trie over blocks of tokens, its nodes named by the hash of all tokens up to them, so that it costs one pass over the
 * tokens. Below each node, only the latest call of each way on is kept: the others have the very same tokens there.
 */
export class NearestCall {
  readonly #sequences: Sequence[] = []
  /** Of a node with one way on, which most have. */
  readonly #only = new Map<number, { next: number; index: number }>()
  readonly #several = new Map<number, Map<number, number>>()

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
    const rest = promptIds.subarray(depth, depth + BLOCK)
    let best: { index: number; common: number } | undefined
    for (const index of this.#waysOn(node)) {
      const sequence = this.#sequences[index] as Sequence
      // Whoever shares more has this token too; most do not.
      if (best !== undefined && tokenAt(sequence, depth + best.common) !== rest[best.common]) continue
      const common = commonTokensFrom(depth, rest, sequence)
      if (best === undefined || common > best.common) best = { index, common }
    }
    return best && { index: best.index, common: commonTokens(promptIds, this.#sequences[best.index] as Sequence) }
  }

  add(sequence: Sequence): void {
    const index = this.#sequences.push(sequence) - 1
    const hash = new TokenHash()
    const length = sequence.promptIds.length + sequence.ids.length
    let node = hash.key()
    for (let depth = 0; depth + BLOCK <= length; depth += BLOCK) {
      addRange(hash, sequence, depth, depth + BLOCK)
      this.#note(node, hash.key(), index)
      node = hash.key()
    }
    // What is left of it, even if that is nothing: a call that ends at a node goes by it too.
    addRange(hash, sequence, length - (length % BLOCK), length)
    this.#note(node, hash.key(), index)
  }

  /** Latest first. */
  #waysOn(node: number): number[] {
    const only = this.#only.get(node)
    return only === undefined ? [...(this.#several.get(node)?.values() ?? [])].reverse() : [only.index]
  }

  #note(node: number, next: number, index: number): void {
    const several = this.#several.get(node)
    const only = this.#only.get(node)
    if (several !== undefined) {
      // Set anew, so that the map is in the order of adding.
      several.delete(next)
      several.set(next, index)
    } else if (only === undefined) {
      this.#only.set(node, { next, index })
    } else if (only.next === next) {
      only.index = index
    } else {
      this.#only.delete(node)
      this.#several.set(
        node,
        new Map([
          [only.next, only.index],
          [next, index],
        ]),
      )
    }
  }
}

/** How many leading tokens of `promptIds` are those of a call's prompt and answer. */
export function commonTokens(promptIds: Int32Array, { promptIds: first, ids }: Sequence): number {
  const inPrompt = commonPrefixOfIds(promptIds, first)
  return inPrompt < first.length ? inPrompt : inPrompt + commonPrefixOfIds(promptIds.subarray(inPrompt), ids)
}

/** The same behind the first `at` tokens of the call. A plain loop: it runs over a block at most, but for many calls. */
function commonTokensFrom(at: number, ids: Int32Array, sequence: Sequence): number {
  let common = 0
  while (common < ids.length && ids[common] === tokenAt(sequence, at + common)) common += 1
  return common
}

function tokenAt({ promptIds, ids }: Sequence, at: number): number | undefined {
  return at < promptIds.length ? promptIds[at] : ids[at - promptIds.length]
}

function addRange(hash: TokenHash, { promptIds, ids }: Sequence, from: number, to: number): void {
  const split = promptIds.length
  if (from < split) hash.add(promptIds, from, Math.min(to, split))
  if (to > split) hash.add(ids, Math.max(from, split) - split, to - split)
}
