import { RolloutError } from '../../model/failure.ts'

/** Every one of them is a connection and a timer, no more; still somebody must say when it is enough. */
const MOST_WAITERS = 20_000

/** Those who wait for news: how many they may be, and that all of them end when the server does. */
export class Waits {
  readonly #closing: AbortSignal
  readonly #most: number
  #count = 0

  constructor(closing: AbortSignal, most: number = MOST_WAITERS) {
    this.#closing = closing
    this.#most = most
  }

  get count(): number {
    return this.#count
  }

  /** The signal ends the wait: nobody is there to hear any more, or the server closes. */
  async during<T>(signal: AbortSignal, wait: (signal: AbortSignal) => Promise<T>): Promise<T> {
    using end = this.enter(signal)
    return await wait(end.signal)
  }

  /** Throws when nobody else may wait. */
  assertRoom(): void {
    if (this.#count < this.#most) return
    const message = `${this.#count} callers wait for news already; ask without waiting, or again in a moment.`
    throw new RolloutError('request.over-quota', message, { status: 503, retryAfterSeconds: 1 })
  }

  /** The same for what does not end with a promise. */
  enter(signal: AbortSignal): Disposable & { signal: AbortSignal } {
    this.assertRoom()
    this.#count += 1
    return {
      signal: AbortSignal.any([signal, this.#closing]),
      [Symbol.dispose]: () => void (this.#count -= 1),
    }
  }
}
