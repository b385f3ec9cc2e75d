import { onAbort } from '../../lib/async/until-aborted.ts'
import type { RunningSession } from '../node.ts'

/** An attempt whose lease this node holds, or may hold. */
export interface HeldLease {
  readonly sessionId: string
  readonly attempt: number
  /** Absent: the session ended before this process started. */
  session?: RunningSession
  /** Whether the session has ended and only its result is to be delivered. */
  isFinished: boolean
  /** When the server last confirmed the lease, in monotonic milliseconds. */
  confirmedAt: number
}

/** The leases of a node, by session and attempt. */
export class LeaseTable {
  readonly #held = new Map<string, HeldLease>()
  readonly #watchers = new Set<() => void>()

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

  /** Returns false if the table does not contain the lease. */
  delete(lease: HeldLease): boolean {
    if (!this.has(lease)) return false
    this.#held.delete(keyOf(lease))
    for (const wake of this.#watchers) wake()
    return true
  }

  /** Resolves when the table is empty or the signal is aborted. */
  async untilEmpty(signal: AbortSignal): Promise<void> {
    while (this.#held.size > 0 && !signal.aborted) {
      const { promise, resolve } = Promise.withResolvers<void>()
      const wake = (): void => resolve()
      this.#watchers.add(wake)
      using _ = onAbort(signal, wake)
      await promise
      this.#watchers.delete(wake)
    }
  }
}

export function keyOf({ sessionId, attempt }: { sessionId: string; attempt: number }): string {
  return `${sessionId}/${attempt}`
}
