import type { LanguageModel } from './backend.ts'
import { emptyKeyValues } from './key-values.ts'
import type { KeyValues } from './key-values.ts'
import type { PrefixCache } from './prefix-cache.ts'
import { CHUNK_TOKENS, nextPiece, sharedChunks } from './reading-plan.ts'

/** What stands after a prompt was read: the memory of it and the logits of the token to come. */
export interface Reading {
  readonly state: KeyValues
  readonly logits: Float32Array
}

/** A prompt being read, one piece at a time so that other sequences can step in between. Shared by a request's choices. */
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

  /** Absent until the whole prompt was read. */
  get result(): Reading | undefined {
    return this.#result
  }

  /** How much of the prompt was known before. */
  get cachedTokens(): number {
    return this.#cachedTokens
  }

  async advance(): Promise<void> {
    const past = this.#state ?? this.#begin()
    const end = past.length + nextPiece(past.length, this.ids.length)
    const { logits, state } = await this.#model.forward(this.ids.subarray(past.length, end), past)
    this.#state = state
    const isWhole = state.length % CHUNK_TOKENS === 0 && state.length / CHUNK_TOKENS <= sharedChunks(this.ids.length)
    if (isWhole) this.#cache.add(this.ids, state)
    if (state.length === this.ids.length) {
      // A copy: the rows of the other tokens need not be kept.
      this.#result = { state, logits: logits.slice(-this.#model.shape.vocabularySize) }
    }
  }

  #begin(): KeyValues {
    const known = this.#cache.find(this.ids)
    this.#cachedTokens = known?.length ?? 0
    return known ?? emptyKeyValues(this.#model.shape)
  }
}
