import { Bell } from '../../lib/async/notifier.ts'
import type { Clock } from '../../lib/async/clock.ts'

/** One who listens for a name. What rings between two calls of `next` is not missed. */
export interface Ear extends Disposable {
  /** Resolves when the name is rung, at the latest after so long, and when the signal is aborted. */
  next(ms: number, signal: AbortSignal): Promise<void>
}

/** Tells those who wait for something that it may have happened; they look for themselves. */
export class NamedBells {
  readonly #clock: Clock
  readonly #bells = new Map<string, Set<Bell>>()

  constructor(clock: Clock) {
    this.#clock = clock
  }

  /** Names that somebody listens for. */
  get size(): number {
    return this.#bells.size
  }

  ring(name: string): void {
    for (const bell of this.#bells.get(name) ?? []) bell.ring()
  }

  /** Anything may have happened. */
  ringAll(): void {
    for (const name of this.#bells.keys()) this.ring(name)
  }

  listen(name: string): Ear {
    const bell = new Bell(this.#clock)
    const bells = this.#bells.get(name) ?? new Set()
    this.#bells.set(name, bells.add(bell))
    return {
      next: (ms, signal) => bell.wait(ms, signal),
      [Symbol.dispose]: () => {
        bells.delete(bell)
        if (bells.size === 0 && this.#bells.get(name) === bells) this.#bells.delete(name)
      },
    }
  }
}
