import type { Clock } from '../../lib/async/clock.ts'
import type { HeldLease } from './lease-table.ts'
import { Notifier } from '../../lib/async/notifier.ts'

/** Maximum delay of a status change, and minimum time between two requests that report changes. */
const CHANGES_MS = 1000

/** Schedules lease renewals: all leases periodically, and leases of sessions whose status changed within a second. */
export class RenewalClock {
  readonly #monotonic: () => number
  readonly #random: () => number
  readonly #rescheduled: Notifier
  #changed = new Set<HeldLease>()
  #everyMs = Infinity
  #allAt = Infinity
  #changesAt = 0
  #isStopped = false
  #hasFailed = false

  constructor(clock: Clock, monotonic: () => number, random: () => number) {
    this.#monotonic = monotonic
    this.#random = random
    this.#rescheduled = new Notifier(clock)
  }

  /** Whether the last renewal failed. */
  get hasFailed(): boolean {
    return this.#hasFailed
  }

  /** The first renewal is at a random time within the period, so that nodes that join together do not renew together. */
  every(ms: number): void {
    this.#everyMs = ms
    this.#allAt = this.#monotonic() + ms * this.#random()
    this.#rescheduled.notify()
  }

  changed(held: HeldLease): void {
    this.#changed.add(held)
    if (this.#changed.size === 1) this.#rescheduled.notify()
  }

  stop(): void {
    this.#isStopped = true
    this.#rescheduled.notify()
  }

  /** Resolves with the leases that are due, as soon as some are. */
  async next(): Promise<'all' | HeldLease[]> {
    for (;;) {
      const now = this.#monotonic()
      if (this.#isStopped) return []
      if (now >= this.#allAt) return this.#begin('all')
      const due = this.#changed.size > 0 ? Math.min(this.#allAt, this.#changesAt) : this.#allAt
      if (now >= due) return this.#begin([...this.#changed])
      await this.#rescheduled.wait(due - now)
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

  /** Schedules the next renewal earlier than usual: a lease may expire soon. */
  failed(due: 'all' | readonly HeldLease[]): void {
    const now = this.#monotonic()
    this.#hasFailed = true
    this.#changesAt = now + CHANGES_MS
    if (due === 'all') this.#allAt = now + Math.max(CHANGES_MS, this.#everyMs / 4)
    else for (const held of due) this.#changed.add(held)
  }
}
