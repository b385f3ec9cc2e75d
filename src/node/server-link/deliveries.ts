import type { Logger } from 'pino'
import type { Clock } from '../../lib/async/clock.ts'
import type { SessionOutcome } from '../../model/session-outcome.ts'
import { withoutResult } from '../session/report-session.ts'
import { Backoff } from './backoff.ts'
import { keyOf } from './lease-book.ts'
import { troubleOf } from './server-errors.ts'

/** What became of a result. `lost`: it is not wanted any more. `undeliverable`: not even that it cannot be delivered is. */
export type DeliveryEnd = 'accepted' | 'lost' | 'undeliverable'

export interface DeliveriesDeps {
  /** How many at a time. */
  width: number
  offer(outcome: SessionOutcome, options: { withResult: boolean; signal: AbortSignal }): Promise<void>
  /** Whether the server still waits for this attempt, in its own words. Throws when it does not say. */
  isWanted(outcome: SessionOutcome, signal: AbortSignal): Promise<boolean>
  onEnd(outcome: SessionOutcome, end: DeliveryEnd): void
  clock: Clock
  random: () => number
  logger: Logger
}

interface Delivery {
  outcome: SessionOutcome
  /** Of what it is now: tries that the server would not have. */
  refusals: number
  hasGivenUpResult: boolean
  backoff: Backoff
  stop: AbortController
}

/** What was refused that often is refused for what it is. */
const MOST_REFUSALS = 3
const AWAY = { baseMs: 500, maxMs: 30_000 }
const ODD = { baseMs: 1000, maxMs: 300_000 }

/**
 * Results on their way to the server, the oldest first. While the server is away one of them asks now and then, and the
 * others wait. One that the server cannot take waits by itself, and holds up nobody; one that it never will take is told
 * to be lost, so that somebody makes it again.
 */
export class Deliveries {
  readonly #deps: DeliveriesDeps
  /** Under way or waiting, by key. */
  readonly #all = new Map<string, Delivery>()
  readonly #queue: Delivery[] = []
  readonly #away: Backoff
  #running = 0
  #isAway = false
  #isStopped = false
  #stopTimer: (() => void) | undefined

  constructor(deps: DeliveriesDeps) {
    this.#deps = deps
    this.#away = new Backoff({ ...AWAY, random: deps.random })
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
      hasGivenUpResult: false,
      backoff: new Backoff({ ...ODD, random: this.#deps.random }),
      stop: new AbortController(),
    }
    this.#all.set(keyOf(outcome), delivery)
    this.#enqueue(delivery)
  }

  /** The server has told otherwise what became of it. */
  remove(lease: { sessionId: string; attempt: number }): void {
    const delivery = this.#all.get(keyOf(lease))
    if (delivery === undefined) return
    this.#forget(delivery)
    delivery.stop.abort(new Error('It need not be delivered any more.'))
  }

  /** Ends what is under way; what is not delivered stays on disk. */
  stop(): void {
    this.#isStopped = true
    this.#stopTimer?.()
    for (const { stop } of this.#all.values()) stop.abort(new Error('The worker stops.'))
  }

  #enqueue(delivery: Delivery): void {
    const behind = this.#queue.findIndex(({ outcome }) => outcome.endedAt > delivery.outcome.endedAt)
    this.#queue.splice(behind === -1 ? this.#queue.length : behind, 0, delivery)
    this.#next()
  }

  #next(): void {
    // While it is away, or may be, one that asks is enough.
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
      await this.#deps.offer(outcome, { withResult: !delivery.hasGivenUpResult, signal: stop.signal })
      this.#reached()
      this.#end(delivery, 'accepted')
    } catch (error) {
      if (this.#all.get(keyOf(outcome)) !== delivery || this.#isStopped) return
      await this.#afterTrouble(delivery, error)
    }
  }

  async #afterTrouble(delivery: Delivery, error: unknown): Promise<void> {
    const { sessionId, attempt } = delivery.outcome
    const fields = { err: error, sessionId, attempt }
    switch (troubleOf(error)) {
      case 'away':
        return this.#wentAway(delivery, error)
      case 'odd':
        this.#deps.logger.warn(fields, 'a result could not be delivered; it is tried again')
        return this.#later(delivery)
      case 'stale':
        this.#reached()
        return this.#end(delivery, 'lost')
      case 'unknown':
        return this.#askWhether(delivery, error)
      case 'broken':
        this.#reached()
        return this.#refused(delivery, error)
    }
  }

  /** A wrong address, or something on the way, answers 404 to everything; a result is not thrown away for that. */
  async #askWhether(delivery: Delivery, error: unknown): Promise<void> {
    try {
      if (!(await this.#deps.isWanted(delivery.outcome, delivery.stop.signal))) return this.#end(delivery, 'lost')
      this.#later(delivery)
    } catch {
      this.#wentAway(delivery, error)
    }
  }

  #refused(delivery: Delivery, error: unknown): void {
    const { sessionId, attempt } = delivery.outcome
    delivery.refusals += 1
    if (delivery.refusals < MOST_REFUSALS) return this.#later(delivery)
    this.#deps.logger.error({ err: error, sessionId, attempt }, 'a result can never be delivered')
    if (delivery.hasGivenUpResult) return this.#end(delivery, 'undeliverable')
    delivery.outcome = withoutResult(delivery.outcome, error)
    delivery.hasGivenUpResult = true
    delivery.refusals = 0
    this.#enqueue(delivery)
  }

  #later(delivery: Delivery): void {
    const stop = this.#deps.clock.after(delivery.backoff.next(), () => {
      if (this.#all.get(keyOf(delivery.outcome)) === delivery) this.#enqueue(delivery)
    })
    delivery.stop.signal.addEventListener('abort', stop, { once: true })
  }

  #wentAway(delivery: Delivery, error: unknown): void {
    if (!this.#isAway) this.#deps.logger.warn({ err: error }, 'results cannot be delivered now; they are kept')
    this.#isAway = true
    this.#stopTimer ??= this.#deps.clock.after(this.#away.next(), () => {
      this.#stopTimer = undefined
      this.#next()
    })
    this.#enqueue(delivery)
  }

  #reached(): void {
    if (this.#isAway) this.#deps.logger.info({ results: this.#all.size }, 'results can be delivered again')
    this.#isAway = false
    this.#away.reset()
  }

  #end(delivery: Delivery, end: DeliveryEnd): void {
    if (this.#all.get(keyOf(delivery.outcome)) !== delivery) return
    this.#forget(delivery)
    this.#deps.onEnd(delivery.outcome, end)
  }

  #forget(delivery: Delivery): void {
    this.#all.delete(keyOf(delivery.outcome))
    const place = this.#queue.indexOf(delivery)
    if (place !== -1) this.#queue.splice(place, 1)
  }
}
