const MIN_BUFFER_BYTES = 16 * 1024
const MAX_POOLED_BUFFER_BYTES = 1024 * 1024
const MAX_POOLED_BYTES = 4 * 1024 * 1024

/**
 * Buffers shared by the logs of one store. Allocating 50 KB costs more than filling it, and a buffer per idle session would
 * dominate the memory of a session.
 */
export class BufferPool {
  #free: Buffer[] = []
  #freeBytes = 0

  acquire(atLeastBytes: number): Buffer {
    const fitting = this.#free.findIndex((buffer) => buffer.length >= atLeastBytes)
    if (fitting === -1) {
      return Buffer.allocUnsafeSlow(2 ** Math.ceil(Math.log2(Math.max(atLeastBytes, MIN_BUFFER_BYTES))))
    }
    const [buffer] = this.#free.splice(fitting, 1) as [Buffer]
    this.#freeBytes -= buffer.length
    return buffer
  }

  release(buffer: Buffer): void {
    if (buffer.length > MAX_POOLED_BUFFER_BYTES || this.#freeBytes + buffer.length > MAX_POOLED_BYTES) return
    this.#free.push(buffer)
    this.#freeBytes += buffer.length
  }
}

/** Appends bytes to a growing buffer. Holds no buffer while empty. */
export class ByteWriter {
  readonly #pool: BufferPool
  #buffer: Buffer | undefined
  #length = 0

  constructor(pool: BufferPool) {
    this.#pool = pool
  }

  get length(): number {
    return this.#length
  }

  /** The bytes so far; valid until the next call. */
  get bytes(): Buffer {
    return this.#buffer === undefined ? Buffer.alloc(0) : this.#buffer.subarray(0, this.#length)
  }

  /** Reserves `size` bytes, which the caller fills with `setUint8` etc.; undefined before that. Returns their position. */
  skip(size: number): number {
    const at = this.#length
    this.#reserve(size)
    this.#length += size
    return at
  }

  setUint8(at: number, value: number): void {
    this.#written().writeUInt8(value, at)
  }

  setUint16(at: number, value: number): void {
    this.#written().writeUInt16LE(value, at)
  }

  setUint32(at: number, value: number): void {
    this.#written().writeUInt32LE(value, at)
  }

  /** Writes UTF-8. Returns the number of bytes. */
  putText(text: string): number {
    // Three bytes per UTF-16 unit is the worst case; a long text is measured instead.
    const size = text.length < 64 * 1024 ? text.length * 3 : Buffer.byteLength(text)
    const written = this.#reserve(size).write(text, this.#length, 'utf8')
    this.#length += written
    return written
  }

  putBytes(bytes: Uint8Array): number {
    this.#reserve(bytes.length).set(bytes, this.#length)
    this.#length += bytes.length
    return bytes.length
  }

  /** Pads with zeros to a multiple of four. */
  align(): void {
    const padding = -this.#length & 3
    this.#reserve(padding).fill(0, this.#length, this.#length + padding)
    this.#length += padding
  }

  /** Truncates to `length`. */
  cut(length: number): void {
    this.#length = length
    if (length === 0) this.release()
  }

  /** Empties the writer and returns its buffer to the pool. */
  release(): void {
    if (this.#buffer !== undefined) this.#pool.release(this.#buffer)
    this.#buffer = undefined
    this.#length = 0
  }

  #reserve(size: number): Buffer {
    const current = this.#buffer
    if (current !== undefined && this.#length + size <= current.length) return current
    const larger = this.#pool.acquire(this.#length + size)
    if (current !== undefined) {
      current.copy(larger, 0, 0, this.#length)
      this.#pool.release(current)
    }
    this.#buffer = larger
    return larger
  }

  #written(): Buffer {
    if (this.#buffer === undefined) throw new RangeError('Nothing was written yet')
    return this.#buffer
  }
}
