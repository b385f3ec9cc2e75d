/**
 * Rolling hash of token ids: two independent polynomials modulo 2^32. Different sequences may have equal hashes, so callers
 * must compare the ids.
 */
export class TokenHash {
  #a = 0x2545f491
  #b = 0x1b873593

  /** Adds `ids[from..to)`. */
  add(ids: Int32Array, from: number, to: number): void {
    let a = this.#a
    let b = this.#b
    for (let i = from; i < to; i++) {
      const id = ids[i] as number
      a = (Math.imul(a, 0x01000193) + id) | 0
      b = (Math.imul(b ^ id, 0x5bd1e995) + 0x27d4eb2f) | 0
    }
    this.#a = a
    this.#b = b
  }

  /** 53 bits of the hash, as a key for a Map. */
  key(): number {
    return (this.#a >>> 0) * 0x20_0000 + (this.#b >>> 11)
  }

  copy(): TokenHash {
    const copy = new TokenHash()
    copy.#a = this.#a
    copy.#b = this.#b
    return copy
  }
}

/** Whether `ids` has `first` at position `at`. */
export function hasIdsAt(ids: Int32Array, at: number, first: Int32Array): boolean {
  if (ids.length - at < first.length) return false
  return bytesOf(ids).compare(bytesOf(first), 0, first.length * 4, at * 4, (at + first.length) * 4) === 0
}

function bytesOf(ids: Int32Array): Buffer {
  return Buffer.from(ids.buffer, ids.byteOffset, ids.byteLength)
}
