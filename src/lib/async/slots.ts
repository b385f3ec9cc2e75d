/** A held slot. Releasing it is idempotent. */
export interface Slot extends Disposable {
  release(): void
}

interface Waiter {
  priority: number
  grant(): void
}

/** Priority semaphore: at most `width` holders; waiters are served by priority, then in order of arrival. */
export class Slots {
  readonly width: number
  #inUse = 0
  readonly #waiting: Waiter[] = []

  constructor(width: number) {
    if (!Number.isInteger(width) || width < 0) throw new RangeError(`${width} is not a valid number of slots`)
    this.width = width
  }

  get inUse(): number {
    return this.#inUse
  }

  get waiting(): number {
    return this.#waiting.length
  }

  /** Waits for a slot; a higher priority is served first. Rejects with the signal's reason if the signal aborts. */
  acquire(priority: number, signal?: AbortSignal): Promise<Slot> {
    signal?.throwIfAborted()
    const free = this.tryAcquire()
    if (free !== undefined) return Promise.resolve(free)
    const { promise, resolve, reject } = Promise.withResolvers<Slot>()
    const leave = (): void => {
      this.#waiting.splice(this.#waiting.indexOf(waiter), 1)
      reject(signal!.reason as Error)
    }
    const waiter: Waiter = {
      priority,
      grant: () => {
        signal?.removeEventListener('abort', leave)
        resolve(this.#hold())
      },
    }
    const behind = this.#waiting.findIndex((other) => other.priority < priority)
    this.#waiting.splice(behind === -1 ? this.#waiting.length : behind, 0, waiter)
    signal?.addEventListener('abort', leave, { once: true })
    return promise
  }

  /** Undefined if no slot is free. Never overtakes a waiter, because waiters exist only while no slot is free. */
  tryAcquire(): Slot | undefined {
    return this.#inUse < this.width ? this.#hold() : undefined
  }

  #hold(): Slot {
    this.#inUse += 1
    let isHeld = true
    const release = (): void => {
      if (!isHeld) return
      isHeld = false
      this.#inUse -= 1
      this.#waiting.shift()?.grant()
    }
    return { release, [Symbol.dispose]: release }
  }
}
