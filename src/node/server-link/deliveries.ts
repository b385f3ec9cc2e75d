import type { Logger } from 'pino'
import type { Clock } from '../../lib/async/clock.ts'
import type { SessionOutcome } from '../../model/session-outcome.ts'
import { withoutResult } from '../session/report-session.ts'
import { Backoff } from './backoff.ts'
import { keyOf } from './lease-table.ts'
import { classifyServerError } from './server-errors.ts'

/** `lost`: the server no longer waits for the attempt. `undeliverable`: the server rejects even an outcome without a result. */
export type DeliveryEnd = 'accepted' | 'lost' | 'undeliverable'

export interface DeliveriesDeps {
  /** Limits concurrent deliveries. */
  width: number
  deliver(outcome: SessionOutcome, options: { withResult: boolean; signal: AbortSignal }): Promise<void>
  /** Whether the server says that it still waits for this attempt. Rejects if the server gives no answer. */
  isLeased(outcome: SessionOutcome, signal: AbortSignal): Promise<boolean>
  onEnd(outcome: SessionOutcome, end: DeliveryEnd): void
  clock: Clock
  random: () => number
  logger: Logger
}

interface Delivery {
  outcome: SessionOutcome
  /** How often the server rejected the current content. */
  refusals: number
  isWithoutResult: boolean
  backoff: Backoff
  stop: AbortController
}

/** After this many refusals the content itself is the cause. */
const MAX_REFUSALS = 3
const UNAVAILABLE = { baseMs: 500, maxMs: 30_000 }
const RETRY = { baseMs: 1000, maxMs: 300_000 }

/**
 * Delivers results to the server, the oldest first. While the server is unavailable one delivery is retried and the others
 * wait. A delivery that fails by itself is retried without blocking the others. If the server rejects a result for good,
 * an outcome without it is delivered, so that the server can refill the session.
 */
export class Deliveries {
  readonly #deps: DeliveriesDeps
  /** Active and waiting deliveries, by key. */
  readonly #all = new Map<string, Delivery>()
  readonly #queue: Delivery[] = []
  readonly #backoff: Backoff
  #running = 0
  #isAway = false
  #isStopped = false
  #stopTimer: (() => void) | undefined

  constructor(deps: DeliveriesDeps) {
    this.#deps = deps
    this.#backoff = new Backoff({ ...UNAVAILABLE, random: deps.random })
  }

  get size(): number {
    return this.#all.size
  }

  get isServerAway(): boolean {
    return this.#isAway
  }

  add(outcome: SessionOutcome): void {
    const delivery: Delivery = {
      outcome,
      refusals: 0,
      isWithoutResult: false,
      backoff: new Backoff({ ...RETRY, random: this.#deps.random }),
      stop: new AbortController(),
    }
    this.#all.set(keyOf(outcome), delivery)
    this.#enqueue(delivery)
  }

  /** Drops a result that the server no longer waits for. */
  remove(lease: { sessionId: string; attempt: number }): void {
    const delivery = this.#all.get(keyOf(lease))
    if (delivery === undefined) return
    this.#delete(delivery)
    delivery.stop.abort(new Error('The server does not wait for this result.'))
  }

  /** Aborts active deliveries; undelivered results stay on disk. */
  stop(): void {
    this.#isStopped = true
    this.#stopTimer?.()
    for (const { stop } of this.#all.values()) stop.abort(new Error('The worker is stopping.'))
  }

  #enqueue(delivery: Delivery): void {
    const behind = this.#queue.findIndex(({ outcome }) => outcome.endedAt > delivery.outcome.endedAt)
    this.#queue.splice(behind === -1 ? this.#queue.length : behind, 0, delivery)
    this.#next()
  }

  #next(): void {
    // One delivery is enough to find out whether the server is available again.
    const width = this.#isAway ? 1 : this.#deps.width
    while (!this.#isStopped && this.#running < width && this.#stopTimer === undefined) {
      const delivery = this.#queue.shift()
      if (delivery === undefined) return
      this.#running += 1
      void this.#deliver(delivery).finally(() => {
        this.#running -= 1
        this.#next()
      })
    }
  }

  async #deliver(delivery: Delivery): Promise<void> {
    const { outcome, stop } = delivery
    try {
      await this.#deps.deliver(outcome, { withResult: !delivery.isWithoutResult, signal: stop.signal })
      this.#reached()
      this.#end(delivery, 'accepted')
    } catch (error) {
      if (this.#all.get(keyOf(outcome)) !== delivery || this.#isStopped) return
      await this.#handleError(delivery, error)
    }
  }

  async #handleError(delivery: Delivery, error: unknown): Promise<void> {
    const { sessionId, attempt } = delivery.outcome
    const fields = { err: error, sessionId, attempt }
    switch (classifyServerError(error)) {
      case 'unavailable':
        return this.#waitForServer(delivery, error)
      case 'retry':
        this.#deps.logger.warn(fields, 'a result could not be delivered; retrying')
        return this.#retry(delivery)
      case 'stale':
        this.#reached()
        return this.#end(delivery, 'lost')
      case 'not-found':
        return this.#confirmLost(delivery, error)
      case 'rejected':
        this.#reached()
        return this.#refused(delivery, error)
    }
  }

  /** A wrong address or a proxy answers 404 to every request; only the server's own answer may discard a result. */
  async #confirmLost(delivery: Delivery, error: unknown): Promise<void> {
    try {
      if (!(await this.#deps.isLeased(delivery.outcome, delivery.stop.signal))) return this.#end(delivery, 'lost')
      this.#retry(delivery)
    } catch {
      this.#waitForServer(delivery, error)
    }
  }

  #refused(delivery: Delivery, error: unknown): void {
    const { sessionId, attempt } = delivery.outcome
    delivery.refusals += 1
    if (delivery.refusals < MAX_REFUSALS) return this.#retry(delivery)
    this.#deps.logger.error({ err: error, sessionId, attempt }, 'the server rejects a result; it is discarded')
    if (delivery.isWithoutResult) return this.#end(delivery, 'undeliverable')
    delivery.outcome = withoutResult(delivery.outcome, error)
    delivery.isWithoutResult = true
    delivery.refusals = 0
    this.#enqueue(delivery)
  }

  #retry(delivery: Delivery): void {
    const stop = this.#deps.clock.after(delivery.backoff.next(), () => {
      if (this.#all.get(keyOf(delivery.outcome)) === delivery) this.#enqueue(delivery)
    })
    delivery.stop.signal.addEventListener('abort', stop, { once: true })
  }

  #waitForServer(delivery: Delivery, error: unknown): void {
    if (!this.#isAway) this.#deps.logger.warn({ err: error }, 'the server is unavailable; results are kept on disk')
    this.#isAway = true
    this.#stopTimer ??= this.#deps.clock.after(this.#backoff.next(), () => {
      this.#stopTimer = undefined
      this.#next()
    })
    this.#enqueue(delivery)
  }

  #reached(): void {
    if (this.#isAway) this.#deps.logger.info({ results: this.#all.size }, 'the server is available again')
    this.#isAway = false
    this.#backoff.reset()
  }

  #end(delivery: Delivery, end: DeliveryEnd): void {
    if (this.#all.get(keyOf(delivery.outcome)) !== delivery) return
    this.#delete(delivery)
    this.#deps.onEnd(delivery.outcome, end)
  }

  #delete(delivery: Delivery): void {
    this.#all.delete(keyOf(delivery.outcome))
    const index = this.#queue.indexOf(delivery)
    if (index !== -1) this.#queue.splice(index, 1)
  }
}
