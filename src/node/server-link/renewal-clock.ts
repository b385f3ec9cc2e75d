import type { Clock } from '../../lib/async/clock.ts'
import { Notifier } from '../../lib/async/notifier.ts'
import type { HeldLease } from './lease-book.ts'

/** Those who watch a session see within this what it does; and no server is asked more often for it. */
const CHANGES_MS = 1000

/** When leases are to be renewed: all of them again and again, and those that have changed a little earlier. */
export class RenewalClock {
  readonly #monotonic: () => number
  readonly #random: () => number
  readonly #notifier: Notifier
  #changed = new Set<HeldLease>()
  #everyMs = Infinity
  #allAt = Infinity
  #changesAt = 0
  #isStopped = false
  #hasFailed = false

  constructor(clock: Clock, monotonic: () => number, random: () => number) {
    this.#monotonic = monotonic
    this.#random = random
    this.#notifier = new Notifier(clock)
  }

  /** The last time nobody was reached. */
  get hasFailed(): boolean {
    return this.#hasFailed
  }

  /** The first time at any moment within it: nodes that joined together would all come together for ever. */
  every(ms: number): void {
    this.#everyMs = ms
    this.#allAt = this.#monotonic() + ms * this.#random()
    this.#notifier.notify()
  }

  changed(held: HeldLease): void {
    this.#changed.add(held)
    if (this.#changed.size === 1) this.#notifier.notify()
  }

  stop(): void {
    this.#isStopped = true
    this.#notifier.notify()
  }

  /** Resolves when some are due, with which. */
  async next(): Promise<'all' | HeldLease[]> {
    for (;;) {
      const now = this.#monotonic()
      if (this.#isStopped) return []
      if (now >= this.#allAt) return this.#begin('all')
      const due = this.#changed.size > 0 ? Math.min(this.#allAt, this.#changesAt) : this.#allAt
      if (now >= due) return this.#begin([...this.#changed])
      await this.#notifier.wait(due - now)
    }
  }

  #begin<T>(due: T): T {
    this.#changed = new Set()
    return due
  }

  succeeded(due: 'all' | readonly HeldLease[]): void {
    const now = this.#monotonic()
    this.#hasFailed = false
    this.#changesAt = now + CHANGES_MS
    if (due === 'all') this.#allAt = now + this.#everyMs
  }

  /** Sooner than usual: a lease may be running out. */
  failed(due: 'all' | readonly HeldLease[]): void {
    const now = this.#monotonic()
    this.#hasFailed = true
    this.#changesAt = now + CHANGES_MS
    if (due === 'all') this.#allAt = now + Math.max(CHANGES_MS, this.#everyMs / 4)
    else for (const held of due) this.#changed.add(held)
  }
}
