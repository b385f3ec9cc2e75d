import { createHash } from 'node:crypto'
import { byteLengthOf, joinKeyValues, sliceKeyValues } from './key-values.ts'
import type { KeyValues } from './key-values.ts'
import type { Reading } from './prefill.ts'
import { CHUNK_TOKENS, sharedChunks } from './reading-plan.ts'

/** Samples of one task and their scores repeat whole prompts. */
const WHOLE_PROMPTS = 8

/** LRU cache of the key-values of prompts by chunk. The key of a chunk is all tokens up to its end. */
export class PrefixCache {
  readonly #chunks = new Map<string, KeyValues>()
  /** Results of the latest prompts, by all their tokens. */
  readonly #wholePrompts = new Map<string, Reading>()
  readonly #capacityBytes: number
  readonly #heads: number
  #bytes = 0

  constructor(options: { capacityBytes: number; keyValueHeads: number }) {
    this.#capacityBytes = options.capacityBytes
    this.#heads = options.keyValueHeads
  }

  /** Returns the longest cached prefix. Leaves some tokens to read, because their logits are needed. */
  find(ids: Int32Array): KeyValues | undefined {
    const names = namesOf(ids, sharedChunks(ids.length))
    const unknown = names.findIndex((name) => !this.#chunks.has(name))
    const known = unknown === -1 ? names : names.slice(0, unknown)
    if (known.length === 0) return undefined
    this.#touch(known)
    return joinKeyValues(
      known.map((name) => this.#chunks.get(name)!),
      this.#heads,
    )
  }

  /** Adds the last chunk of `state`, which has read the start of `ids` up to a cut. */
  add(ids: Int32Array, state: KeyValues): void {
    const names = namesOf(ids, state.length / CHUNK_TOKENS)
    const name = names.at(-1)
    if (name === undefined) return
    if (!this.#chunks.has(name)) {
      const chunk = sliceKeyValues(state, state.length - CHUNK_TOKENS, this.#heads)
      this.#chunks.set(name, chunk)
      this.#bytes += byteLengthOf(chunk)
    }
    this.#touch(names)
    for (const [oldest, chunk] of this.#chunks) {
      if (this.#bytes <= this.#capacityBytes) break
      this.#chunks.delete(oldest)
      this.#bytes -= byteLengthOf(chunk)
    }
  }

  /** Returns the result of reading exactly this prompt, if it is one of the latest. */
  findWhole(ids: Int32Array): Reading | undefined {
    return this.#wholePrompts.get(nameOf(ids))
  }

  addWhole(ids: Int32Array, reading: Reading): void {
    if (byteLengthOf(reading.state) * WHOLE_PROMPTS > this.#capacityBytes) return
    this.#wholePrompts.delete(nameOf(ids))
    this.#wholePrompts.set(nameOf(ids), reading)
    const [oldest] = this.#wholePrompts.keys()
    if (this.#wholePrompts.size > WHOLE_PROMPTS) this.#wholePrompts.delete(oldest!)
  }

  /** Without whole prompts. */
  get byteLength(): number {
    return this.#bytes
  }

  /** Evicts from the end: a chunk is useless without the chunks before it. */
  #touch(names: readonly string[]): void {
    for (const name of names.toReversed()) {
      const chunk = this.#chunks.get(name)
      if (chunk === undefined) continue
      this.#chunks.delete(name)
      this.#chunks.set(name, chunk)
    }
  }
}

function namesOf(ids: Int32Array, chunks: number): string[] {
  const names: string[] = []
  for (let chunk = 0; chunk < chunks; chunk++) {
    const tokens = ids.subarray(chunk * CHUNK_TOKENS, (chunk + 1) * CHUNK_TOKENS)
    names.push(nameOf(tokens, names.at(-1)))
  }
  return names
}

function nameOf(tokens: Int32Array, before = ''): string {
  const bytes = new Uint8Array(tokens.buffer, tokens.byteOffset, tokens.byteLength)
  return createHash('sha256').update(before).update(bytes).digest('base64')
}
