/** A place that is held. Giving it back twice is giving it back once. */
export interface Slot extends Disposable {
  release(): void
}

interface Waiter {
  priority: number
  grant(): void
}

/** So many may be inside at a time; the others wait, the most important first, and of equals whoever came first. */
export class Slots {
  readonly width: number
  #inUse = 0
  readonly #waiting: Waiter[] = []

  constructor(width: number) {
    if (!Number.isInteger(width) || width < 0) throw new RangeError(`${width} is no number of slots`)
    this.width = width
  }

  get inUse(): number {
    return this.#inUse
  }

  get waiting(): number {
    return this.#waiting.length
  }

  /** Rejects with the signal's reason, and then holds nothing. Numbers are ordered: a higher priority enters first. */
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
        resolve(this.#take())
      },
    }
    const behind = this.#waiting.findIndex((other) => other.priority < priority)
    this.#waiting.splice(behind === -1 ? this.#waiting.length : behind, 0, waiter)
    signal?.addEventListener('abort', leave, { once: true })
    return promise
  }

  /** Undefined when all are taken. Does not overtake those who wait: while somebody does, none is free. */
  tryAcquire(): Slot | undefined {
    return this.#inUse < this.width ? this.#take() : undefined
  }

  #take(): Slot {
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
