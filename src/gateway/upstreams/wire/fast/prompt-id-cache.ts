import { scanIds, type Numbers, type Source } from './scan-bytes.ts'

/** Ids behind this many bytes of a prompt are not cached. */
const LONGEST_TEXT = 256 * 1024
/** Ids between two positions at which parsing may resume. */
const STRIDE = 512

/**
 * Keeps the prompt ids of a session's latest answer and their bytes on the wire. Most of a prompt repeats the previous
 * prompt, and comparing bytes takes a fortieth of the time of parsing ids.
 */
export class PromptIdCache {
  /** The list on the wire, without its brackets: the first `#length` bytes. */
  #text = Buffer.alloc(0)
  #length = 0
  #ids: Int32Array = new Int32Array(0)
  /** Positions in the text of the ids 0, STRIDE, 2 * STRIDE, ... */
  #marks: number[] = []

  /**
   * Reads the list of ids that begins at `at`, behind its opening bracket. `end` is the position of the closing bracket.
   * Undefined when the bytes are no list of ids. Several answers may share the array: callers must not write to it.
   */
  read(source: Source, at: number): { ids: Int32Array; end: number } | undefined {
    const { bytes } = source
    const end = bytes.indexOf(CLOSE_BRACKET, at)
    if (end === -1) return undefined
    if (this.#isSame(bytes, at, end)) return { ids: this.#ids, end }
    const mark = this.#lastSharedMark(bytes, at, end)
    const known = mark * STRIDE
    const start = at + (this.#marks[mark] ?? 0)
    const rest: Numbers<Int32Array> = { values: new Int32Array(((end - start) >> 1) + 1), length: 0 }
    if (scanIds(source, start, rest) !== end) return undefined
    const ids = new Int32Array(known + rest.length)
    ids.set(this.#ids.subarray(0, known))
    ids.set(rest.values.subarray(0, rest.length), known)
    this.#remember(bytes.subarray(at, end), ids, mark)
    return { ids, end }
  }

  #isSame(bytes: Buffer, at: number, end: number): boolean {
    const length = end - at
    return length > 0 && length === this.#length && this.#compare(bytes, at, 0, length)
  }

  /** Returns the index of the last mark up to which both texts are equal. */
  #lastSharedMark(bytes: Buffer, at: number, end: number): number {
    let low = 0
    let high = this.#marks.length - 1
    while (low < high) {
      const middle = (low + high + 1) >>> 1
      const to = this.#marks[middle] as number
      if (at + to < end && this.#compare(bytes, at, this.#marks[low] as number, to)) low = middle
      else high = middle - 1
    }
    return low
  }

  #compare(bytes: Buffer, at: number, from: number, to: number): boolean {
    return this.#text.compare(bytes, at + from, at + to, from, to) === 0
  }

  #remember(text: Buffer, ids: Int32Array, sharedMark: number): void {
    const from = this.#marks[sharedMark] ?? 0
    const length = Math.min(text.length, LONGEST_TEXT)
    if (length > this.#text.length) {
      const larger = Buffer.allocUnsafeSlow(Math.min(Math.ceil(length * 1.25), LONGEST_TEXT))
      this.#text.copy(larger, 0, 0, from)
      this.#text = larger
    }
    text.copy(this.#text, from, from, length)
    this.#length = length
    const marks = this.#marks.slice(0, sharedMark + 1)
    if (marks.length === 0) marks.push(0)
    for (let at = from, count = 0; at < length; at++) {
      if (text[at] === COMMA && ++count % STRIDE === 0) marks.push(at + 1)
    }
    this.#marks = marks
    this.#ids = length < text.length ? ids.slice(0, marks.length * STRIDE) : ids
    if (length < text.length) this.#length = 0
  }
}

const COMMA = 44
const CLOSE_BRACKET = 93
