import type { LanguageModel } from './backend.ts'
import { emptyKeyValues } from './key-values.ts'
import type { KeyValues } from './key-values.ts'
import type { PrefixCache } from './prefix-cache.ts'
import { CHUNK_TOKENS, nextPiece, sharedChunks } from './reading-plan.ts'

/** Result of reading a prompt: its key-values, and the hidden state and logits of the next token. */
export interface Reading {
  readonly state: KeyValues
  readonly logits: Float32Array
  readonly hidden: Float32Array
}

/** Reads a prompt piece by piece, so that other sequences can run in between. Shared by a request's choices. */
export class Prefill {
  readonly ids: Int32Array
  readonly #model: LanguageModel
  readonly #cache: PrefixCache
  #state: KeyValues | undefined
  #result: Reading | undefined
  #cachedTokens = 0

  constructor(ids: Int32Array, deps: { model: LanguageModel; cache: PrefixCache }) {
    this.ids = ids
    this.#model = deps.model
    this.#cache = deps.cache
  }

  /** Absent until the whole prompt is read. */
  get result(): Reading | undefined {
    return this.#result
  }

  /** Number of cached prompt tokens. */
  get cachedTokens(): number {
    return this.#cachedTokens
  }

  async advance(): Promise<void> {
    const past = this.#state ?? this.#begin()
    if (this.#result !== undefined) return
    const end = past.length + nextPiece(past.length, this.ids.length)
    const { logits, hidden, state } = await this.#model.forward(this.ids.subarray(past.length, end), past)
    this.#state = state
    const isWhole = state.length % CHUNK_TOKENS === 0 && state.length / CHUNK_TOKENS <= sharedChunks(this.ids.length)
    if (isWhole) this.#cache.add(this.ids, state)
    if (state.length === this.ids.length) {
      // A copy: the rows of the other tokens can be freed.
      const { vocabularySize, hiddenSize } = this.#model.shape
      this.#result = { state, logits: logits.slice(-vocabularySize), hidden: hidden.slice(-hiddenSize) }
      this.#cache.addWhole(this.ids, this.#result)
    }
  }

  #begin(): KeyValues {
    this.#result = this.#cache.findWhole(this.ids)
    if (this.#result !== undefined) {
      this.#cachedTokens = sharedChunks(this.ids.length) * CHUNK_TOKENS
      return this.#result.state
    }
    const known = this.#cache.find(this.ids)
    this.#cachedTokens = known?.length ?? 0
    return known ?? emptyKeyValues(this.#model.shape)
  }
}
