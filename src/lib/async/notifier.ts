import type { Clock } from './clock.ts'

/** Wakes one who waits. Rung while nobody does, it wakes the next at once. */
export class Bell {
  readonly #clock: Clock
  #isRung = false
  #wake: (() => void) | undefined

  constructor(clock: Clock) {
    this.#clock = clock
  }

  ring(): void {
    this.#isRung = true
    this.#wake?.()
  }

  /** Until it is rung, so much time has passed, or the signal is aborted. Only one may wait at a time. */
  async wait(ms = Infinity, signal?: AbortSignal): Promise<void> {
    if (!this.#isRung && ms > 0 && !signal?.aborted) {
      const { promise, resolve } = Promise.withResolvers<void>()
      const end = (): void => resolve()
      this.#wake = end
      const stop = ms === Infinity ? () => {} : this.#clock.after(ms, end)
      signal?.addEventListener('abort', end)
      await promise
      stop()
      signal?.removeEventListener('abort', end)
      this.#wake = undefined
    }
    this.#isRung = false
  }
}
