/** A server-sent event. `event` is absent for the default type, `id` if the event has none. */
export interface SseMessage {
  event?: string
  id?: string
  data: string
}

/**
 * Incremental parser of a `text/event-stream`. The result does not depend on how the bytes are divided into chunks. As the
 * standard requires, an event without a final empty line is dropped.
 */
export class SseParser {
  readonly #decoder = new TextDecoder()
  readonly #maxEventChars: number
  #pending = ''
  /** A CR ended the last line, so an LF right after it belongs to that line end. */
  #skipLineFeed = false
  #event: string | undefined
  #id: string | undefined
  #data: string | undefined

  /** Throws RangeError from `push` once an unfinished event exceeds `maxEventChars`. */
  constructor(options: { maxEventChars?: number } = {}) {
    this.#maxEventChars = options.maxEventChars ?? 64 * 1024 * 1024
  }

  push(bytes: Uint8Array): SseMessage[] {
    const messages: SseMessage[] = []
    const added = this.#decoder.decode(bytes, { stream: true })
    const mayHaveCr = added.includes('\r')
    const text = this.#pending + added
    // `#pending` has no line end. Searching it again for every chunk of a long line would take quadratic time.
    if (!mayHaveCr && !added.includes('\n')) {
      if (added !== '') this.#skipLineFeed = false
      this.#keep(text)
      return messages
    }
    let start = 0
    for (;;) {
      if (this.#skipLineFeed && start < text.length) {
        if (text.charCodeAt(start) === LF) start += 1
        this.#skipLineFeed = false
      }
      const end = mayHaveCr ? lineEnd(text, start) : text.indexOf('\n', start)
      if (end === -1) break
      if (text.charCodeAt(end) === CR) this.#skipLineFeed = true
      this.#line(text, start, end, messages)
      start = end + 1
    }
    this.#keep(start === 0 ? text : text.slice(start))
    return messages
  }

  #keep(pending: string): void {
    this.#pending = pending
    if (pending.length + (this.#data?.length ?? 0) > this.#maxEventChars) {
      throw new RangeError(`server-sent event exceeds ${this.#maxEventChars} characters`)
    }
  }

  #line(text: string, start: number, end: number, messages: SseMessage[]): void {
    if (start === end) {
      if (this.#data !== undefined) {
        const message: SseMessage =
          this.#event === undefined ? { data: this.#data } : { event: this.#event, data: this.#data }
        if (this.#id !== undefined) message.id = this.#id
        messages.push(message)
      }
      this.#data = undefined
      this.#id = undefined
      this.#event = undefined
      return
    }
    const colon = text.indexOf(':', start)
    if (colon === start) return
    const fieldEnd = colon === -1 || colon > end ? end : colon
    let valueStart = Math.min(fieldEnd + 1, end)
    if (text.charCodeAt(valueStart) === SPACE && valueStart < end) valueStart += 1
    const field = text.slice(start, fieldEnd)
    if (field === 'data') {
      const value = text.slice(valueStart, end)
      this.#data = this.#data === undefined ? value : `${this.#data}\n${value}`
    } else if (field === 'event') {
      this.#event = text.slice(valueStart, end)
    } else if (field === 'id') {
      this.#id = text.slice(valueStart, end)
    }
  }
}

/** Formats an event for the wire. */
export function formatSse(data: string, event?: string): string {
  const body = data.includes('\n') ? data.replaceAll('\n', '\ndata: ') : data
  return event === undefined ? `data: ${body}\n\n` : `event: ${event}\ndata: ${body}\n\n`
}

const LF = 10
const CR = 13
const SPACE = 32

function lineEnd(text: string, from: number): number {
  const lf = text.indexOf('\n', from)
  const cr = text.indexOf('\r', from)
  if (cr === -1) return lf
  return lf === -1 ? cr : Math.min(lf, cr)
}
