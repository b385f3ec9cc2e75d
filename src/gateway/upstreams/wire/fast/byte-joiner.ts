/** A larger buffer is not kept for the next answer. */
const LARGEST_KEPT_BYTES = 4 * 1024 * 1024

/** Concatenates pieces in a buffer that is used again: allocating 100 KB costs more than filling them. */
export class ByteJoiner {
  #buffer = Buffer.alloc(0)

  /** Valid until the next call. */
  join(pieces: readonly Buffer[]): Buffer {
    if (pieces.length === 1) return pieces[0] as Buffer
    const size = pieces.reduce((sum, piece) => sum + piece.length, 0)
    if (size > LARGEST_KEPT_BYTES) return Buffer.concat(pieces, size)
    if (size > this.#buffer.length) this.#buffer = Buffer.allocUnsafeSlow(Math.ceil(size * 1.25))
    let at = 0
    for (const piece of pieces) at += piece.copy(this.#buffer, at)
    return this.#buffer.subarray(0, size)
  }
}
