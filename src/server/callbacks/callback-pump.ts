import type { Logger } from 'pino'
import type { Clock } from '../../lib/async/clock.ts'
import { OwnAddresses } from '../../lib/net/own-addresses.ts'
import { RolloutError } from '../../model/failure.ts'
import type { Sql } from '../../store/database.ts'
import {
  type CallbackEnd,
  type DueCallback,
  settleCallback,
  takeCallbacks,
} from '../../store/dispatch/commands/callbacks.ts'
import { createAllowedHosts, DEFAULT_ALLOWED_HOSTS } from './allowed-hosts.ts'
import { Deliverer, refuseUrl } from './deliver.ts'
import { HostQueue } from './host-queue.ts'
import { endOf } from './retry.ts'

export interface CallbackOptions {
  /**
   * Where trainers may be called: a host, `host:port`, `*.domain`, a range of addresses such as `10.0.0.0/8`, or
   * `loopback`. A host may lead to a private address; what only matches `*.domain` must lead to a public one, or to one
   * in a range of the list. Default: `loopback` alone.
   */
  allowedHosts?: readonly string[]
  /** Signs what is sent. Absent: nothing is signed. */
  secret?: string
  /** How often one is tried before it is given up. Default 30, which takes two to three hours. */
  attempts?: number
  /** Of one try, in all. Default 60 s. */
  timeoutMs?: number
  /** Default 10 s. */
  connectTimeoutMs?: number
  /** Calls to one host at a time, from each server. Default 4. */
  perHost?: number
  /** Addresses of Polar itself, which are never called. */
  own?: OwnAddresses
}

export interface CallbackDeps {
  db: Sql
  /**
   * TaskResult JSON. Asked for twice in each try, to sign it and to send it, and must be the same both times. Undefined:
   * there is no such task any more, or it is not over any more.
   */
  openTaskResult: (taskId: string) => Promise<AsyncIterable<Uint8Array> | undefined>
  clock: Clock
  logger: Logger
  /** From 0 up to 1. */
  random?: () => number
  /** All addresses of a name; that of the system unless told. */
  resolve?: (hostname: string) => Promise<string[]>
  /** How often to look for what is due. Default 1 s. */
  pollMs?: number
}

/** Sends what is due; any number of servers may each have one. */
export interface CallbackSender extends AsyncDisposable {
  /** Something may be due now: look at once. */
  wake(): void
}

/** Throws `request.malformed` for a URL that would never be called. A name is only resolved when it is. */
export function assertCallbackAllowed(url: string, options: CallbackOptions): void {
  const { allowedHosts = DEFAULT_ALLOWED_HOSTS, own = new OwnAddresses() } = options
  const refusal = refuseUrl(url, { allowed: createAllowedHosts(allowedHosts), own })
  if (refusal === undefined) return
  const message = `callback_url is not one that this server calls: ${refusal}. Allowed are ${allowedHosts.join(', ') || 'none'}; the server’s settings say which.`
  throw new RolloutError('request.malformed', message, { status: 422, param: 'body.callback_url' })
}

export function startCallbacks(options: CallbackOptions, deps: CallbackDeps): CallbackSender {
  return new CallbackPump(options, deps)
}

const DEFAULT_ATTEMPTS = 30
const DEFAULT_TIMEOUT_MS = 60_000
const DEFAULT_CONNECT_TIMEOUT_MS = 10_000
const DEFAULT_PER_HOST = 4
const DEFAULT_POLL_MS = 1000
/** Held by one server, sending or waiting to. */
const MOST_HELD = 256
const MOST_TAKEN = 64

class CallbackPump implements CallbackSender {
  readonly #deps: CallbackDeps
  readonly #attempts: number
  readonly #timeoutMs: number
  readonly #deliverer: Deliverer
  readonly #hosts: HostQueue
  readonly #random: () => number
  readonly #stop = new AbortController()
  readonly #running = new Set<Promise<void>>()
  readonly #takenAt = new Map<number, number>()
  readonly #loop: Promise<void>
  #wake: () => void = () => {}
  #isWoken = false

  constructor(options: CallbackOptions, deps: CallbackDeps) {
    const { attempts = DEFAULT_ATTEMPTS, timeoutMs = DEFAULT_TIMEOUT_MS, perHost = DEFAULT_PER_HOST } = options
    this.#deps = deps
    this.#attempts = attempts
    this.#timeoutMs = timeoutMs
    this.#random = deps.random ?? Math.random
    this.#hosts = new HostQueue(perHost, this.#random)
    this.#deliverer = new Deliverer({
      allowed: createAllowedHosts(options.allowedHosts ?? DEFAULT_ALLOWED_HOSTS),
      own: options.own ?? new OwnAddresses(),
      secret: options.secret,
      timeoutMs,
      connectTimeoutMs: options.connectTimeoutMs ?? DEFAULT_CONNECT_TIMEOUT_MS,
      connectionsPerHost: perHost,
      now: () => deps.clock.now(),
      openTaskResult: deps.openTaskResult,
      ...(deps.resolve !== undefined && { resolve: deps.resolve }),
    })
    this.#loop = this.#run()
  }

  wake(): void {
    this.#isWoken = true
    this.#wake()
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stop.abort()
    this.#wake()
    await this.#loop
    // Given back, so that another server can send them at once.
    await Promise.all(this.#hosts.clear().map((due) => this.#settle(due, this.#givenBack())))
    await Promise.all(this.#running)
    await this.#deliverer[Symbol.asyncDispose]()
  }

  async #run(): Promise<void> {
    while (!this.#stop.signal.aborted) {
      this.#isWoken = false
      const isMore = await this.#takeSome()
      if (!isMore && !this.#isWoken) await this.#pause()
    }
  }

  /** Whether there may be more at once. */
  async #takeSome(): Promise<boolean> {
    const { db, clock, logger } = this.#deps
    const limit = Math.min(MOST_TAKEN, MOST_HELD - this.#takenAt.size)
    if (limit <= 0) return false
    let taken: DueCallback[]
    try {
      taken = await takeCallbacks(db, { claimMs: this.#claimMs, limit }, clock.now())
    } catch (error) {
      logger.warn({ err: error }, 'callbacks could not be looked up and will be later')
      return false
    }
    for (const due of taken) this.#place(due)
    return taken.length === limit
  }

  /** Longer than a try can last, after waiting as long as it may for its turn. */
  get #claimMs(): number {
    return 3 * this.#timeoutMs + 10_000
  }

  #place(due: DueCallback): void {
    // Its claim ran out while it is in hand here, because a clock jumped: it comes to its end in any case.
    if (this.#takenAt.has(due.id)) return
    const now = this.#deps.clock.now()
    const placement = this.#hosts.place(due, now)
    if (placement.kind === 'postpone') {
      this.#follow(this.#settle(due, { kind: 'postponed', at: placement.untilMs }))
      return
    }
    this.#takenAt.set(due.id, now)
    if (placement.kind === 'start') this.#follow(this.#work(due))
  }

  #follow(work: Promise<void>): void {
    const run = work.finally(() => this.#running.delete(run))
    this.#running.add(run)
  }

  /** This one, then those that waited for its place. */
  async #work(first: DueCallback): Promise<void> {
    for (let due: DueCallback | undefined = first; due !== undefined;) {
      const isHostDown = await this.#try(due)
      due = this.#hosts.end(due, isHostDown, this.#deps.clock.now())
    }
    this.#wake()
  }

  /** Whether the host could not be reached. */
  async #try(due: DueCallback): Promise<boolean> {
    const { clock, logger } = this.#deps
    const waitedMs = clock.now() - (this.#takenAt.get(due.id) ?? 0)
    if (this.#stop.signal.aborted || waitedMs > this.#timeoutMs) {
      await this.#settle(due, this.#givenBack())
      return false
    }
    try {
      const delivery = await this.#deliverer.deliver(due, this.#stop.signal)
      const end = endOf(delivery, { tries: due.tries, attempts: this.#attempts }, clock.now(), this.#random())
      if (end.kind === 'dead') {
        const { taskId, url, tries } = due
        logger.warn({ taskId, url, tries, error: end.error }, 'a callback was given up; it can be sent again by hand')
      }
      await this.#settle(due, end)
      return delivery.kind === 'failed' && delivery.isHostDown
    } catch (error) {
      if (!this.#stop.signal.aborted) logger.error({ err: error, taskId: due.taskId }, 'a callback failed')
      await this.#settle(due, this.#givenBack())
      return false
    }
  }

  #givenBack(): CallbackEnd {
    return { kind: 'postponed', at: this.#deps.clock.now() }
  }

  /** One that is not settled comes again when its claim has run out. */
  async #settle(due: DueCallback, end: CallbackEnd): Promise<void> {
    this.#takenAt.delete(due.id)
    try {
      await settleCallback(this.#deps.db, due.id, end)
    } catch (error) {
      this.#deps.logger.warn({ err: error, taskId: due.taskId }, 'a callback was sent and may be sent again')
    }
  }

  async #pause(): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>()
    this.#wake = resolve
    if (this.#stop.signal.aborted || this.#isWoken) resolve()
    const stop = this.#deps.clock.after(this.#deps.pollMs ?? DEFAULT_POLL_MS, resolve)
    await promise
    stop()
  }
}
