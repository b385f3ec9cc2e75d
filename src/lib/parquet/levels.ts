import { writeVarint } from './thrift.ts'

/** Small numbers in runs: the depth at which each value of a column repeats or ends. */
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

  /** With its length in front; empty for a column that has only one level. */
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
