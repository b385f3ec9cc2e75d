import type { DueCallback } from '../../store/dispatch/commands/callbacks.ts'
import { backoffMs, LONGEST_DELAY_MS } from './retry.ts'

/** In a row; one may be a single lost connection. */
const FAILURES_TO_BE_DOWN = 3
const WAITING_PER_SLOT = 4
const BUSY_DELAY_MS = 5000

interface Host {
  running: number
  waiting: DueCallback[]
  failures: number
  downUntil: number
}

/** What to do with a callback that is due. */
export type Placement = { kind: 'start' } | { kind: 'wait' } | { kind: 'postpone'; untilMs: number }

/**
 * So many calls at a time to each host, and none to one that is down. Whoever is dead or slow holds up nobody else: what
 * does not fit goes back to the table, to a later time.
 */
export class HostQueue {
  readonly #hosts = new Map<string, Host>()
  readonly #perHost: number
  readonly #random: () => number

  constructor(perHost: number, random: () => number) {
    this.#perHost = perHost
    this.#random = random
  }

  place(due: DueCallback, now: number): Placement {
    const host = this.#hostOf(due)
    // Further off than that it was never put: the clock has been set back since.
    const isDown = host.downUntil > now && host.downUntil <= now + LONGEST_DELAY_MS
    if (isDown) return { kind: 'postpone', untilMs: host.downUntil + this.#random() * BUSY_DELAY_MS }
    if (host.running < this.#perHost) {
      host.running += 1
      return { kind: 'start' }
    }
    if (host.waiting.length >= this.#perHost * WAITING_PER_SLOT) {
      return { kind: 'postpone', untilMs: now + BUSY_DELAY_MS * (0.5 + this.#random()) }
    }
    host.waiting.push(due)
    return { kind: 'wait' }
  }

  /** One has ended; gives the next to the same host, which has taken its place. */
  end(due: DueCallback, isHostDown: boolean, now: number): DueCallback | undefined {
    const host = this.#hostOf(due)
    host.failures = isHostDown ? host.failures + 1 : 0
    if (host.failures >= FAILURES_TO_BE_DOWN) host.downUntil = now + backoffMs(host.failures, this.#random())
    const next = host.waiting.shift()
    if (next === undefined) host.running -= 1
    if (host.running === 0 && host.failures === 0) this.#hosts.delete(keyOf(due))
    this.#forgetOld(now)
    return next
  }

  /** Those that wait, which are then no longer here. */
  clear(): DueCallback[] {
    return [...this.#hosts.values()].flatMap((host) => host.waiting.splice(0))
  }

  #hostOf(due: DueCallback): Host {
    const key = keyOf(due)
    const host = this.#hosts.get(key) ?? { running: 0, waiting: [], failures: 0, downUntil: 0 }
    this.#hosts.set(key, host)
    return host
  }

  #forgetOld(now: number): void {
    if (this.#hosts.size < 1000) return
    for (const [key, { running, downUntil }] of this.#hosts) {
      if (running === 0 && downUntil <= now) this.#hosts.delete(key)
    }
  }
}

function keyOf({ url }: DueCallback): string {
  return URL.canParse(url) ? new URL(url).host : url
}
