import { RolloutError } from '../../model/failure.ts'

/** A long poll costs only a connection and a timer, but their number must be bounded. */
const MAX_LONG_POLLS = 20_000

/** Limits the number of long polls and event streams, and ends them when the server closes. */
export class LongPolls {
  readonly #closing: AbortSignal
  readonly #max: number
  #count = 0

  constructor(closing: AbortSignal, max: number = MAX_LONG_POLLS) {
    this.#closing = closing
    this.#max = max
  }

  get count(): number {
    return this.#count
  }

  /** The signal passed to `poll` is aborted when the client disconnects or the server closes. */
  async run<T>(signal: AbortSignal, poll: (signal: AbortSignal) => Promise<T>): Promise<T> {
    using end = this.begin(signal)
    return await poll(end.signal)
  }

  /** Throws `request.over-quota` at the limit. */
  assertCapacity(): void {
    if (this.#count < this.#max) return
    const message = `The server has ${this.#count} open long polls; send the request without wait, or retry in a moment.`
    throw new RolloutError('request.over-quota', message, { status: 503, retryAfterSeconds: 1 })
  }

  /** Like `run`, for a stream: disposing ends the poll. */
  begin(signal: AbortSignal): Disposable & { signal: AbortSignal } {
    this.assertCapacity()
    this.#count += 1
    return {
      signal: AbortSignal.any([signal, this.#closing]),
      [Symbol.dispose]: () => void (this.#count -= 1),
    }
  }
}
