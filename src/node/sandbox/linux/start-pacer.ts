import { setTimeout as sleep } from 'node:timers/promises'

/** Limits how many sandboxes start per second. */
export class StartPacer {
  readonly #intervalMs: number
  readonly #now: () => number
  #next = 0

  constructor(startsPerSecond: number, now: () => number) {
    this.#intervalMs = 1000 / startsPerSecond
    this.#now = now
  }

  async wait(signal: AbortSignal): Promise<void> {
    const now = this.#now()
    const start = Math.max(now, this.#next)
    this.#next = start + this.#intervalMs
    if (start > now) await sleep(start - now, undefined, { signal })
  }
}
