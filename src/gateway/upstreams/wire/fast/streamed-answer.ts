import type { Readable } from 'node:stream'
import type { StreamEvent } from '../../../../model/stream-event.ts'

/** Bytes whose events nobody has taken yet, from which on the engine is held back. */
const MOST_WAITING_BYTES = 256 * 1024
/** What an engine may send, and how long it may take, behind the last event. */
const DRAIN_BYTES = 64 * 1024
const DRAIN_MS = 1000

export interface StreamReader {
  push(bytes: Buffer): StreamEvent[]
  /** Whether the last event has been read. */
  readonly ended: boolean
}

/**
 * The events of a stream that is read as it comes, for one consumer. What came since the last time is taken in one piece,
 * or in one piece for each version of the weights that the pieces arrived under: a slow consumer takes events long after
 * they were sampled, and their versions go by when they were read from the network.
 * By events of the stream and one promise a piece: nested async iterators cost more than everything else done to it.
 *
 * The last event of an answer is not the end of its response. To leave there would close the connection, so what follows
 * is read and thrown away, and the connection can be used again.
 */
export class StreamedAnswer implements AsyncIterableIterator<readonly StreamEvent[]> {
  readonly #body: Readable
  readonly #reader: StreamReader
  readonly #toEvent: (error: Error | undefined) => StreamEvent
  readonly #weights: { readonly position: number }
  #arrived = 0
  #isReading = false
  #events: StreamEvent[] = []
  /** Where the weights stood when `#events` were read; all of them were read at the same position. */
  #position = 0
  /** Events that were read before the weights changed, oldest first. */
  readonly #earlier: { events: StreamEvent[]; position: number }[] = []
  #waitingBytes = 0
  #isOver = false
  #waiting: PromiseWithResolvers<IteratorResult<readonly StreamEvent[], undefined>> | undefined
  #drained = 0
  /** `weights.position` when the events that were taken last were read from the network. */
  readonly arrived = (): number => this.#arrived

  /** `toEvent`: the last event when something breaks, or when the stream ends before the answer does. */
  constructor(
    body: Readable,
    reader: StreamReader,
    toEvent: (error: Error | undefined) => StreamEvent,
    weights: { readonly position: number } = { position: 0 },
  ) {
    this.#body = body
    this.#reader = reader
    this.#toEvent = toEvent
    this.#weights = weights
  }

  [Symbol.asyncIterator](): this {
    return this
  }

  next(): Promise<IteratorResult<readonly StreamEvent[], undefined>> {
    if (!this.#isReading) this.#read()
    if (this.#events.length > 0 || this.#earlier.length > 0)
      return Promise.resolve({ value: this.#take(), done: false })
    if (this.#isOver) return Promise.resolve({ value: undefined, done: true })
    this.#waiting = Promise.withResolvers()
    return this.#waiting.promise
  }

  /** Whoever leaves before the end ends the engine's work. */
  return(): Promise<IteratorResult<readonly StreamEvent[], undefined>> {
    if (!this.#isOver) this.#body.destroy()
    this.#isOver = true
    return Promise.resolve({ value: undefined, done: true })
  }

  #read(): void {
    this.#isReading = true
    this.#body.on('data', (bytes: Buffer) => this.#onData(bytes))
    this.#body.on('end', () => this.#onEnd(undefined))
    this.#body.on('error', (error: Error) => this.#onEnd(error))
    this.#body.on('close', () => this.#onEnd(undefined))
  }

  #onData(bytes: Buffer): void {
    if (this.#isOver) {
      this.#drained += bytes.length
      if (this.#drained > DRAIN_BYTES) this.#body.destroy()
      return
    }
    this.#waitingBytes += bytes.length
    this.#separateVersions()
    try {
      const events = this.#reader.push(bytes)
      if (this.#events.length === 0) this.#events = events
      else for (const event of events) this.#events.push(event)
    } catch (error) {
      this.#body.destroy()
      this.#onEnd(error as Error)
      return
    }
    if (this.#reader.ended) this.#drain()
    else if (this.#events.length > 0 && this.#waitingBytes > MOST_WAITING_BYTES) this.#body.pause()
    if (this.#events.length > 0) this.#wake()
  }

  #separateVersions(): void {
    const { position } = this.#weights
    if (position === this.#position) return
    if (this.#events.length > 0) this.#earlier.push({ events: this.#events, position: this.#position })
    this.#events = []
    this.#position = position
  }

  /** All has been said; the rest of the response is nobody's concern any more. */
  #drain(): void {
    this.#isOver = true
    const timer = setTimeout(() => this.#body.destroy(), DRAIN_MS)
    this.#body.once('close', () => clearTimeout(timer))
  }

  #onEnd(error: Error | undefined): void {
    if (this.#isOver) return
    this.#isOver = true
    this.#events.push(this.#toEvent(error))
    this.#wake()
  }

  #wake(): void {
    const waiting = this.#waiting
    if (waiting === undefined) return
    this.#waiting = undefined
    waiting.resolve({ value: this.#take(), done: false })
  }

  #take(): readonly StreamEvent[] {
    const earlier = this.#earlier.shift()
    this.#arrived = earlier?.position ?? this.#position
    if (earlier !== undefined) return earlier.events
    const events = this.#events
    this.#events = []
    this.#waitingBytes = 0
    if (this.#body.isPaused() && !this.#isOver) this.#body.resume()
    return events
  }
}

/** All bytes of a body, as they came. */
export function readPieces(body: Readable): Promise<Buffer[]> {
  const pieces: Buffer[] = []
  return new Promise((resolve, reject) => {
    body.on('data', (piece: Buffer) => pieces.push(piece))
    body.on('end', () => resolve(pieces))
    body.on('error', reject)
    body.on('close', () => {
      if (!body.readableEnded) reject(new Error('the body was closed before its end'))
    })
  })
}
