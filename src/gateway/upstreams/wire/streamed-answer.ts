import type { Readable } from 'node:stream'
import type { WireEvent } from '../../wire-event.ts'

/** When the events of this many bytes wait for the consumer, reading from the engine pauses. */
const MOST_WAITING_BYTES = 256 * 1024
/** Limits for the rest of a response behind the last event of its answer. */
const DRAIN_BYTES = 64 * 1024
const DRAIN_MS = 1000

export interface StreamReader {
  push(bytes: Buffer): WireEvent[]
  readonly ended: boolean
}

/**
 * Moves the bytes of every streamed answer from the network to its reader, and the events to one consumer. A batch holds
 * all events since the previous batch, and never spans a change of weights: a slow consumer receives events long after
 * they were sampled, and their weight version depends on when they were read from the network.
 *
 * Uses the events of the stream and one promise for a batch: nested async iterators cost more than all other work.
 *
 * The response continues behind the last event of its answer. The rest is read and discarded, because leaving earlier
 * would close the connection, which can otherwise be used again.
 */
export class StreamedAnswer implements AsyncIterableIterator<readonly WireEvent[]> {
  readonly #body: Readable
  readonly #reader: StreamReader
  readonly #toEvent: (error: Error | undefined) => WireEvent
  readonly #weights: { readonly position: number }
  #arrived = 0
  #isReading = false
  #events: WireEvent[] = []
  /** `weights.position` when `#events` were read, which is the same for all of them. */
  #position = 0
  /** Events that were read before the weights changed, oldest first. */
  readonly #earlier: { events: WireEvent[]; position: number }[] = []
  #waitingBytes = 0
  #isOver = false
  #waiting: PromiseWithResolvers<IteratorResult<readonly WireEvent[], undefined>> | undefined
  #drained = 0
  /** `weights.position` when the events of the latest batch were read from the network. */
  readonly arrived = (): number => this.#arrived

  /** `toEvent` makes the last event when reading fails, or (undefined) when the stream ends before the answer. */
  constructor(
    body: Readable,
    reader: StreamReader,
    toEvent: (error: Error | undefined) => WireEvent,
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

  next(): Promise<IteratorResult<readonly WireEvent[], undefined>> {
    if (!this.#isReading) this.#read()
    if (this.#events.length > 0 || this.#earlier.length > 0)
      return Promise.resolve({ value: this.#takeBatch(), done: false })
    if (this.#isOver) return Promise.resolve({ value: undefined, done: true })
    this.#waiting = Promise.withResolvers()
    return this.#waiting.promise
  }

  /** A consumer that leaves before the end stops the engine. */
  return(): Promise<IteratorResult<readonly WireEvent[], undefined>> {
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
    waiting.resolve({ value: this.#takeBatch(), done: false })
  }

  #takeBatch(): readonly WireEvent[] {
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
