import type { Clock } from '../../lib/clock.ts'

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

  /** Until it is rung, or so much time has passed. Only one may wait at a time. */
  async wait(ms = Infinity): Promise<void> {
    if (!this.#isRung && ms > 0) {
      const { promise, resolve } = Promise.withResolvers<void>()
      this.#wake = resolve
      const stop = ms === Infinity ? () => {} : this.#clock.after(ms, resolve)
      await promise
      stop()
      this.#wake = undefined
    }
    this.#isRung = false
  }
}
