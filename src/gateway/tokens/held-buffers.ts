/** Tracks which arrays share memory, and counts the memory of all held arrays once. */
export class HeldBuffers<Holder> {
  readonly #holders = new Map<ArrayBufferLike, Map<Holder, number>>()
  #bytes = 0

  get bytes(): number {
    return this.#bytes
  }

  hold(holder: Holder, arrays: readonly Int32Array[]): void {
    for (const { buffer } of arrays) {
      let holders = this.#holders.get(buffer)
      if (holders === undefined) {
        this.#holders.set(buffer, (holders = new Map()))
        this.#bytes += buffer.byteLength
      }
      holders.set(holder, (holders.get(holder) ?? 0) + 1)
    }
  }

  /** `arrays` must have been passed to `hold` before. */
  release(holder: Holder, arrays: readonly Int32Array[]): void {
    for (const { buffer } of arrays) {
      const holders = this.#holders.get(buffer)
      const count = holders?.get(holder)
      if (holders === undefined || count === undefined) continue
      if (count > 1) holders.set(holder, count - 1)
      else holders.delete(holder)
      if (holders.size > 0) continue
      this.#holders.delete(buffer)
      this.#bytes -= buffer.byteLength
    }
  }

  holdersOf(buffer: ArrayBufferLike): Holder[] {
    return [...(this.#holders.get(buffer)?.keys() ?? [])]
  }
}
