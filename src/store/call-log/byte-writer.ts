const SMALLEST_BYTES = 16 * 1024
const LARGEST_KEPT_BYTES = 1024 * 1024
const KEPT_BYTES = 4 * 1024 * 1024

/**
 * Buffers that go round between the logs of one store. Allocating 50 KB costs more than filling it, and a buffer per
 * idle session would be the largest thing a session keeps.
 */
export class BufferPool {
  #free: Buffer[] = []
  #freeBytes = 0

  take(atLeastBytes: number): Buffer {
    const fitting = this.#free.findIndex((buffer) => buffer.length >= atLeastBytes)
    if (fitting === -1) {
      return Buffer.allocUnsafeSlow(2 ** Math.ceil(Math.log2(Math.max(atLeastBytes, SMALLEST_BYTES))))
    }
    const [buffer] = this.#free.splice(fitting, 1) as [Buffer]
    this.#freeBytes -= buffer.length
    return buffer
  }

  give(buffer: Buffer): void {
    if (buffer.length > LARGEST_KEPT_BYTES || this.#freeBytes + buffer.length > KEPT_BYTES) return
    this.#free.push(buffer)
    this.#freeBytes += buffer.length
  }
}

/** Bytes put one after the other, in a buffer that grows. Holds none while it is empty. */
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

  /** What was written so far; valid until the next call. */
  get bytes(): Buffer {
    return this.#buffer === undefined ? Buffer.alloc(0) : this.#buffer.subarray(0, this.#length)
  }

  /** Room for `size` bytes, to be filled through `setUint8` and the like; their values are not defined before that. */
  skip(size: number): number {
    const at = this.#length
    this.#room(size)
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

  /** As UTF-8; gives the number of bytes. */
  putText(text: string): number {
    // Three bytes a UTF-16 unit is the worst case; a long text is measured instead of tripled.
    const room = text.length < 64 * 1024 ? text.length * 3 : Buffer.byteLength(text)
    const size = this.#room(room).write(text, this.#length, 'utf8')
    this.#length += size
    return size
  }

  putBytes(bytes: Uint8Array): number {
    this.#room(bytes.length).set(bytes, this.#length)
    this.#length += bytes.length
    return bytes.length
  }

  /** Zeros up to a multiple of four from the start of the buffer. */
  align(): void {
    const padding = -this.#length & 3
    this.#room(padding).fill(0, this.#length, this.#length + padding)
    this.#length += padding
  }

  /** Takes back everything from `length` on. */
  cut(length: number): void {
    this.#length = length
    if (length === 0) this.release()
  }

  /** Empties the writer and gives its buffer to the pool. */
  release(): void {
    if (this.#buffer !== undefined) this.#pool.give(this.#buffer)
    this.#buffer = undefined
    this.#length = 0
  }

  #room(size: number): Buffer {
    const current = this.#buffer
    if (current !== undefined && this.#length + size <= current.length) return current
    const larger = this.#pool.take(this.#length + size)
    if (current !== undefined) {
      current.copy(larger, 0, 0, this.#length)
      this.#pool.give(current)
    }
    this.#buffer = larger
    return larger
  }

  #written(): Buffer {
    if (this.#buffer === undefined) throw new RangeError('Nothing was written yet')
    return this.#buffer
  }
}
