import type { RunningSession } from '../node.ts'

/** An attempt that is in this node's hands, as far as it knows. */
export interface HeldLease {
  readonly sessionId: string
  readonly attempt: number
  /** Absent: it had ended before this process began. */
  session?: RunningSession
  /** All that is left to do is to deliver it. */
  isFinished: boolean
  /** When the server last said that it is ours; on the clock that only goes forward. */
  knownAt: number
}

/** What a node holds, by session and attempt. */
export class LeaseBook {
  readonly #held = new Map<string, HeldLease>()
  readonly #watchers = new Set<() => void>()

  get size(): number {
    return this.#held.size
  }

  all(): HeldLease[] {
    return [...this.#held.values()]
  }

  add(lease: HeldLease): HeldLease {
    this.#held.set(keyOf(lease), lease)
    return lease
  }

  get(sessionId: string, attempt: number): HeldLease | undefined {
    return this.#held.get(keyOf({ sessionId, attempt }))
  }

  has(lease: HeldLease): boolean {
    return this.#held.get(keyOf(lease)) === lease
  }

  /** False when it was not there any more. */
  delete(lease: HeldLease): boolean {
    if (!this.has(lease)) return false
    this.#held.delete(keyOf(lease))
    for (const wake of this.#watchers) wake()
    return true
  }

  /** Resolves once nothing is held, or the signal is aborted. */
  async untilEmpty(signal: AbortSignal): Promise<void> {
    while (this.#held.size > 0 && !signal.aborted) {
      const { promise, resolve } = Promise.withResolvers<void>()
      const wake = (): void => resolve()
      this.#watchers.add(wake)
      signal.addEventListener('abort', wake, { once: true })
      await promise
      this.#watchers.delete(wake)
      signal.removeEventListener('abort', wake)
    }
  }
}

export function keyOf({ sessionId, attempt }: { sessionId: string; attempt: number }): string {
  return `${sessionId}/${attempt}`
}
