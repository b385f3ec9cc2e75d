import { countLeading } from '../../lib/collections/count-leading.ts'
import { hasIdsAt, TokenHash } from '../../lib/net/token-hash.ts'
import type { CallNode } from '../graph/call-graph.ts'

type Chain = CallNode[]

/** Index of call chains by the prompt of their last call. Prompts are not empty, and no two last prompts are equal. */
export class ChainTips {
  readonly #byHash = new Map<number, Chain[]>()
  /** Distinct lengths of last prompts, ascending, and the number of chains of each length. */
  readonly #lengths: number[] = []
  readonly #counts = new Map<number, number>()

  /** Returns the chain with the longest last prompt that is a prefix of `prompt`. One pass over the prompt. */
  find(prompt: Int32Array): Chain | undefined {
    const hash = new TokenHash()
    const likely: Chain[] = []
    let read = 0
    for (const length of this.#lengths) {
      if (length > prompt.length) break
      hash.add(prompt, read, length)
      read = length
      for (const chain of this.#byHash.get(hash.key()) ?? []) if (tipOf(chain).length === length) likely.push(chain)
    }
    return likely.findLast((chain) => hasIdsAt(prompt, 0, tipOf(chain)))
  }

  add(chain: Chain): void {
    const tip = tipOf(chain)
    const key = keyOf(tip)
    this.#byHash.set(key, [...(this.#byHash.get(key) ?? []), chain])
    const count = this.#counts.get(tip.length) ?? 0
    this.#counts.set(tip.length, count + 1)
    if (count === 0) this.#lengths.splice(countBelow(this.#lengths, tip.length), 0, tip.length)
  }

  /** Must be called before a call is appended to the chain. */
  remove(chain: Chain): void {
    const tip = tipOf(chain)
    const key = keyOf(tip)
    const others = this.#byHash.get(key)?.filter((other) => other !== chain) ?? []
    if (others.length === 0) this.#byHash.delete(key)
    else this.#byHash.set(key, others)
    const count = (this.#counts.get(tip.length) ?? 1) - 1
    this.#counts.set(tip.length, count)
    if (count === 0) this.#lengths.splice(countBelow(this.#lengths, tip.length), 1)
  }
}

function tipOf(chain: Chain): Int32Array {
  return (chain.at(-1) as CallNode).response.promptIds
}

function keyOf(prompt: Int32Array): number {
  const hash = new TokenHash()
  hash.add(prompt, 0, prompt.length)
  return hash.key()
}

function countBelow(sorted: readonly number[], value: number): number {
  return countLeading(sorted.length, (i) => (sorted[i] as number) < value)
}
