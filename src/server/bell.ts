import type { Clock } from '../lib/clock.ts'

/** One who listens for a name. What rings between two calls of `next` is not missed. */
export interface Ear extends Disposable {
  /** Resolves when the name is rung, at the latest after so long, and when the signal is aborted. */
  next(ms: number, signal: AbortSignal): Promise<void>
}

/** Tells those who wait for something that it may have happened; they look for themselves. */
export class Bell {
  readonly #clock: Clock
  readonly #ears = new Map<string, Set<{ hear(): void }>>()

  constructor(clock: Clock) {
    this.#clock = clock
  }

  /** Names that somebody listens for. */
  get size(): number {
    return this.#ears.size
  }

  ring(name: string): void {
    for (const ear of this.#ears.get(name) ?? []) ear.hear()
  }

  /** Anything may have happened. */
  ringAll(): void {
    for (const name of this.#ears.keys()) this.ring(name)
  }

  listen(name: string): Ear {
    const clock = this.#clock
    let isRung = false
    let wake: (() => void) | undefined
    const ear = {
      hear() {
        isRung = true
        wake?.()
      },
    }
    const ears = this.#ears.get(name) ?? new Set()
    this.#ears.set(name, ears.add(ear))
    return {
      async next(ms, signal) {
        if (!isRung && !signal.aborted) {
          const { promise, resolve } = Promise.withResolvers<void>()
          const end = (): void => resolve()
          wake = end
          const stop = clock.after(ms, end)
          signal.addEventListener('abort', end)
          await promise
          stop()
          signal.removeEventListener('abort', end)
          wake = undefined
        }
        isRung = false
      },
      [Symbol.dispose]: () => {
        ears.delete(ear)
        if (ears.size === 0 && this.#ears.get(name) === ears) this.#ears.delete(name)
      },
    }
  }
}
