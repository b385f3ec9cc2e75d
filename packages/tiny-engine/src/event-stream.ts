import type { ServerResponse } from 'node:http'

/** Buffered bytes before the writer yields to the event loop. */
const FULL_AT = 64 * 1024

/** Destination of the events of an answer. */
export interface EventWriter {
  write(events: string): void
  ready(): Promise<void> | undefined
  flushed(): Promise<void>
  end(events?: string): void
  destroy(): void
}

/**
 * Writes server-sent events: all events of one iteration of the event loop form one write, and a client that does not read
 * applies backpressure.
 */
export class EventStream implements EventWriter {
  readonly #response: ServerResponse
  #waiting = ''
  #isScheduled = false
  #isBlocked = false
  #hasWritten = false
  #space: Promise<void> | undefined

  constructor(response: ServerResponse) {
    this.#response = response
    response.writeHead(200, { 'content-type': 'text/event-stream; charset=utf-8', 'cache-control': 'no-cache' })
    // Sends the status now, in the same packet as the first events if they are ready.
    setImmediate(() => {
      if (!this.#hasWritten && !response.destroyed) response.flushHeaders()
    })
  }

  /** Writes whole events: `data: …` and an empty line each. */
  write(events: string): void {
    this.#waiting += events
    if (this.#isScheduled) return
    this.#isScheduled = true
    process.nextTick(this.#onTick)
  }

  /** Returns a promise to await before further writes; undefined if the buffer is not full. */
  ready(): Promise<void> | undefined {
    if (this.#waiting.length < FULL_AT && !this.#isBlocked) return undefined
    this.#space ??= this.#waitForSpace()
    return this.#space
  }

  /** Resolves when everything was passed to the operating system. */
  async flushed(): Promise<void> {
    this.#flush()
    if (this.#response.destroyed) return
    await new Promise<void>((resolve) => {
      this.#response.once('close', resolve)
      this.#response.write('', () => {
        this.#response.off('close', resolve)
        resolve()
      })
    })
  }

  /** Writes the last events and ends the response. */
  end(events = ''): void {
    const rest = this.#waiting + events
    this.#waiting = ''
    if (this.#response.destroyed) return
    this.#hasWritten = true
    this.#response.end(rest)
  }

  /** Destroys the connection. */
  destroy(): void {
    this.#waiting = ''
    this.#response.destroy()
  }

  readonly #onTick = (): void => {
    this.#isScheduled = false
    this.#flush()
  }

  #flush(): void {
    const text = this.#waiting
    this.#waiting = ''
    if (text === '' || this.#response.destroyed || this.#response.writableEnded) return
    this.#hasWritten = true
    this.#isBlocked = !this.#response.write(text)
  }

  async #waitForSpace(): Promise<void> {
    this.#flush()
    if (this.#isBlocked) await this.#drained()
    else await new Promise((resolve) => setImmediate(resolve))
    this.#space = undefined
  }

  async #drained(): Promise<void> {
    await new Promise<void>((resolve) => {
      const done = () => {
        this.#response.off('drain', done).off('close', done)
        resolve()
      }
      if (this.#response.destroyed) resolve()
      else this.#response.on('drain', done).on('close', done)
    })
    this.#isBlocked = false
  }
}
