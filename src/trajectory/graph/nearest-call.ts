import { commonPrefixOfIds } from '../../lib/common-prefix.ts'
import { TokenHash } from '../../lib/token-hash.ts'

/** Tokens between two looks at the index. */
const BLOCK = 128

/** How many of the calls that share a block are compared token by token. */
const COMPARED = 8

/** The tokens of a call: prompt, then answer. */
export interface Sequence {
  promptIds: Int32Array
  ids: Int32Array
}

/**
 * Finds the call whose tokens a prompt shares the longest beginning with, of those added so far; the latest of equals. A
 * trie over blocks of tokens, kept as one table of hashes, so that it costs one pass over the tokens.
 */
export class NearestCall {
  readonly #sequences: Sequence[] = []
  /** Hash of the blocks up to one -> the last sequence that has them; `#before` leads to the ones before. */
  readonly #last = new Map<number, number>()
  readonly #before = new Map<number, number[]>()

  /** The position of the call among those added, and how many leading tokens are shared. */
  find(promptIds: Int32Array): { index: number; common: number } | undefined {
    const hash = new TokenHash()
    let deepest = this.#candidates(0)
    for (let end = BLOCK; end <= promptIds.length; end += BLOCK) {
      hash.add(promptIds, end - BLOCK, end)
      const candidates = this.#candidates(hash.key())
      if (candidates.length === 0) break
      deepest = candidates
    }
    let best: { index: number; common: number } | undefined
    for (const index of deepest) {
      const common = commonTokens(promptIds, this.#sequences[index] as Sequence)
      if (best === undefined || common > best.common) best = { index, common }
    }
    return best
  }

  add(sequence: Sequence): void {
    const index = this.#sequences.push(sequence) - 1
    this.#note(0, index)
    const hash = new TokenHash()
    const length = sequence.promptIds.length + sequence.ids.length
    for (let end = BLOCK; end <= length; end += BLOCK) {
      addRange(hash, sequence, end - BLOCK, end)
      this.#note(hash.key(), index)
    }
  }

  /** Latest first. */
  #candidates(key: number): number[] {
    const last = this.#last.get(key)
    return last === undefined ? [] : [last, ...(this.#before.get(key) ?? [])]
  }

  #note(key: number, index: number): void {
    const last = this.#last.get(key)
    if (last !== undefined) {
      const before = this.#before.get(key)
      if (before === undefined) this.#before.set(key, [last])
      else {
        before.unshift(last)
        if (before.length >= COMPARED) before.length = COMPARED - 1
      }
    }
    this.#last.set(key, index)
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
