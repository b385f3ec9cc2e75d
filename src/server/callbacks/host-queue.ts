import type { DueCallback } from '../../store/dispatch/port.ts'
import { backoffMs, MAX_DELAY_MS } from './retry.ts'

/** Consecutive failures; a single one may be a lost connection. */
const FAILURES_TO_BE_DOWN = 3
const WAITING_PER_SLOT = 4
const BUSY_DELAY_MS = 5000

interface Host {
  running: number
  waiting: DueCallback[]
  failures: number
  downUntil: number
}

/** `wait`: queued until a request to the host ends. */
export type Admission = { kind: 'start' } | { kind: 'wait' } | { kind: 'postpone'; untilMs: number }

/**
 * Limits concurrent requests per host, and sends none to a host that is down. A slow or dead host does not delay other hosts:
 * callbacks beyond its queue are postponed in the table.
 */
export class HostQueue {
  readonly #hosts = new Map<string, Host>()
  readonly #perHost: number
  readonly #random: () => number

  constructor(perHost: number, random: () => number) {
    this.#perHost = perHost
    this.#random = random
  }

  admit(due: DueCallback, now: number): Admission {
    const host = this.#hostOf(due)
    // A later time than the maximum delay means that the clock was set back.
    const isDown = host.downUntil > now && host.downUntil <= now + MAX_DELAY_MS
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

  /** Ends a request; returns the next callback for the same host, which is then running. */
  end(due: DueCallback, isHostDown: boolean, now: number): DueCallback | undefined {
    const host = this.#hostOf(due)
    host.failures = isHostDown ? host.failures + 1 : 0
    if (host.failures >= FAILURES_TO_BE_DOWN) host.downUntil = now + backoffMs(host.failures, this.#random())
    const next = host.waiting.shift()
    if (next === undefined) host.running -= 1
    if (host.running === 0 && host.failures === 0) this.#hosts.delete(keyOf(due))
    this.#removeStale(now)
    return next
  }

  /** Removes and returns all waiting callbacks. */
  clear(): DueCallback[] {
    return [...this.#hosts.values()].flatMap((host) => host.waiting.splice(0))
  }

  #hostOf(due: DueCallback): Host {
    const key = keyOf(due)
    const host = this.#hosts.get(key) ?? { running: 0, waiting: [], failures: 0, downUntil: 0 }
    this.#hosts.set(key, host)
    return host
  }

  #removeStale(now: number): void {
    if (this.#hosts.size < 1000) return
    for (const [key, { running, downUntil }] of this.#hosts) {
      if (running === 0 && downUntil <= now) this.#hosts.delete(key)
    }
  }
}

function keyOf({ url }: DueCallback): string {
  return URL.canParse(url) ? new URL(url).host : url
}
