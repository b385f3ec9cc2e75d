/** Finds what was said between a mark and a semicolon in a stream that is somebody else's, however it was cut. */
export class MarkedMessages {
  readonly text: string
  /** What was said last; undefined before that. */
  last: string | undefined
  readonly #bytes: Buffer
  /** What may be the beginning of it. */
  #held: Buffer = Buffer.alloc(0)

  constructor(text: string) {
    this.text = text
    this.#bytes = Buffer.from(`${text} `)
  }

  take(data: Buffer): { content: Buffer; words: string[] } {
    let all = this.#held.length === 0 ? data : Buffer.concat([this.#held, data])
    const content: Buffer[] = []
    const words: string[] = []
    for (;;) {
      const at = all.indexOf(this.#bytes)
      const end = at < 0 ? -1 : all.indexOf(0x3b, at)
      if (end < 0) {
        const keep = at < 0 ? this.#begunAt(all) : at
        content.push(all.subarray(0, keep))
        this.#held = Buffer.from(all.subarray(keep))
        return { content: Buffer.concat(content), words }
      }
      content.push(all.subarray(0, at))
      this.last = all.subarray(at + this.#bytes.length, end).toString('latin1')
      words.push(this.last)
      all = all.subarray(end + 1)
    }
  }

  /** What was its beginning only. */
  rest(): Buffer {
    const held = this.#held
    this.#held = Buffer.alloc(0)
    return held
  }

  /** Where the end of it could be the mark's beginning. */
  #begunAt(all: Buffer): number {
    let length = Math.min(all.length, this.#bytes.length - 1)
    while (length > 0 && !all.subarray(-length).equals(this.#bytes.subarray(0, length))) length -= 1
    return all.length - length
  }
}
