import type { Clock } from '../../lib/async/clock.ts'
import { Notifier } from '../../lib/async/notifier.ts'

/** A notification between two calls of `next` is not lost. */
export interface Subscription extends Disposable {
  /** Resolves when the key is notified, after `ms`, or when the signal is aborted. */
  next(ms: number, signal: AbortSignal): Promise<void>
}

/** Notifies subscribers of a key that something may have changed; subscribers read the new state themselves. */
export class KeyedNotifier {
  readonly #clock: Clock
  readonly #subscribers = new Map<string, Set<Notifier>>()

  constructor(clock: Clock) {
    this.#clock = clock
  }

  /** Number of keys with a subscription. */
  get size(): number {
    return this.#subscribers.size
  }

  notify(key: string): void {
    for (const notifier of this.#subscribers.get(key) ?? []) notifier.notify()
  }

  notifyAll(): void {
    for (const key of this.#subscribers.keys()) this.notify(key)
  }

  subscribe(key: string): Subscription {
    const notifier = new Notifier(this.#clock)
    const notifiers = this.#subscribers.get(key) ?? new Set()
    this.#subscribers.set(key, notifiers.add(notifier))
    return {
      next: (ms, signal) => notifier.wait(ms, signal),
      [Symbol.dispose]: () => {
        notifiers.delete(notifier)
        if (notifiers.size === 0 && this.#subscribers.get(key) === notifiers) this.#subscribers.delete(key)
      },
    }
  }
}
