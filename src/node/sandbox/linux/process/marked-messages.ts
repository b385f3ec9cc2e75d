/** Extracts messages between a mark and a semicolon from a stream of other data, however the stream is split. */
export class MarkedMessages {
  readonly text: string
  /** The last message; undefined before the first. */
  last: string | undefined
  readonly #bytes: Buffer
  /** Bytes that may be the beginning of a message. */
  #held: Buffer = Buffer.alloc(0)

  constructor(text: string) {
    this.text = text
    this.#bytes = Buffer.from(`${text} `)
  }

  extract(data: Buffer): { content: Buffer; messages: string[] } {
    let all = this.#held.length === 0 ? data : Buffer.concat([this.#held, data])
    const content: Buffer[] = []
    const messages: string[] = []
    for (;;) {
      const at = all.indexOf(this.#bytes)
      const end = at < 0 ? -1 : all.indexOf(0x3b, at)
      if (end < 0) {
        const keep = at < 0 ? this.#begunAt(all) : at
        content.push(all.subarray(0, keep))
        this.#held = Buffer.from(all.subarray(keep))
        return { content: Buffer.concat(content), messages }
      }
      content.push(all.subarray(0, at))
      this.last = all.subarray(at + this.#bytes.length, end).toString('latin1')
      messages.push(this.last)
      all = all.subarray(end + 1)
    }
  }

  /** Returns bytes that were only the beginning of a message. */
  rest(): Buffer {
    const held = this.#held
    this.#held = Buffer.alloc(0)
    return held
  }

  /** Returns the offset at which the mark may begin. */
  #begunAt(all: Buffer): number {
    let length = Math.min(all.length, this.#bytes.length - 1)
    while (length > 0 && !all.subarray(-length).equals(this.#bytes.subarray(0, length))) length -= 1
    return all.length - length
  }
}
