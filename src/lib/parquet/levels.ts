import { writeVarint } from './thrift.ts'

/** Run-length encoder of repetition and definition levels. */
export class Levels {
  readonly #bitWidth: number
  readonly #bytes: number[] = []
  #level = 0
  #count = 0

  constructor(max: number) {
    this.#bitWidth = 32 - Math.clz32(max)
  }

  push(level: number, count = 1): void {
    if (level !== this.#level) this.#endRun()
    this.#level = level
    this.#count += count
  }

  /** Prefixed by its length; empty for a column with only one level. */
  encode(): Buffer {
    if (this.#bitWidth === 0) return Buffer.alloc(0)
    this.#endRun()
    const length = Buffer.alloc(4)
    length.writeUInt32LE(this.#bytes.length)
    return Buffer.concat([length, Buffer.from(this.#bytes)])
  }

  get size(): number {
    return this.#bytes.length
  }

  #endRun(): void {
    if (this.#count > 0 && this.#bitWidth > 0) {
      writeVarint(this.#bytes, this.#count * 2)
      this.#bytes.push(this.#level)
    }
    this.#count = 0
  }
}
