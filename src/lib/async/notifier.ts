import type { Clock } from './clock.ts'
import { onAbort } from './until-aborted.ts'

/** Wakes one waiter. A notification that arrives while no one waits ends the next wait at once. */
export class Notifier {
  readonly #clock: Clock
  #isNotified = false
  #wake: (() => void) | undefined

  constructor(clock: Clock) {
    this.#clock = clock
  }

  notify(): void {
    this.#isNotified = true
    this.#wake?.()
  }

  /** Resolves on notification, after `ms`, or when the signal is aborted. Only one caller may wait at a time. */
  async wait(ms = Infinity, signal?: AbortSignal): Promise<void> {
    if (!this.#isNotified && ms > 0 && !signal?.aborted) {
      const { promise, resolve } = Promise.withResolvers<void>()
      const end = (): void => resolve()
      this.#wake = end
      const stop = ms === Infinity ? () => {} : this.#clock.after(ms, end)
      using _ = onAbort(signal, end)
      await promise
      stop()
      this.#wake = undefined
    }
    this.#isNotified = false
  }
}
