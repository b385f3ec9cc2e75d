import type { Logger } from 'pino'
import type { Clock } from '../../lib/async/clock.ts'
import { Notifier } from '../../lib/async/notifier.ts'
import { OwnAddresses } from '../../lib/net/own-addresses.ts'
import { RolloutError } from '../../model/failure.ts'
import type { CallbackEnd, Dispatch, DueCallback } from '../../store/dispatch/port.ts'
import { createAllowedHosts, DEFAULT_ALLOWED_HOSTS } from './allowed-hosts.ts'
import { CallbackHttp, refuseUrl } from './deliver.ts'
import { HostQueue } from './host-queue.ts'
import { endOf } from './retry.ts'

export interface CallbackOptions {
  /**
   * Allowed hosts of callback URLs: a host, `host:port`, `*.domain`, an address range such as `10.0.0.0/8`, or `loopback`. A
   * listed host may resolve to a private address; a host that only matches `*.domain` must resolve to a public address, or to
   * one in a listed range. Default: `loopback` only.
   */
  allowedHosts?: readonly string[]
  /** Key of the HMAC signature. Absent: callbacks are not signed. */
  secret?: string
  /** Tries before a callback is dead. Default 30, which takes two to three hours. */
  attempts?: number
  /** Time limit of one try. Default 60 s. */
  timeoutMs?: number
  /** Default 10 s. */
  connectTimeoutMs?: number
  /** Concurrent requests of this server to one host. Default 4. */
  perHost?: number
  /** Addresses of Polar itself, to which no callback is sent. */
  own?: OwnAddresses
}

export interface CallbackDeps {
  dispatch: Pick<Dispatch, 'claimCallbacks' | 'settleCallback'>
  /**
   * Opens the TaskResult JSON. Called twice in each try, to sign it and to send it; both must return the same bytes. Undefined
   * if the task does not exist or runs again.
   */
  openTaskResult: (taskId: string) => Promise<AsyncIterable<Uint8Array> | undefined>
  clock: Clock
  logger: Logger
  /** In [0, 1). */
  random?: () => number
  /** Resolves all addresses of a host name. Default: the system's resolver. */
  resolve?: (hostname: string) => Promise<string[]>
  /** Poll interval for due callbacks. Default 1 s. */
  pollMs?: number
}

/** Throws `request.malformed` for a URL that is not allowed. Does not resolve the host name. */
export function assertCallbackAllowed(url: string, options: CallbackOptions): void {
  const { allowedHosts = DEFAULT_ALLOWED_HOSTS, own = new OwnAddresses() } = options
  const refusal = refuseUrl(url, { allowed: createAllowedHosts(allowedHosts), own })
  if (refusal === undefined) return
  const message = `callback_url is not allowed: ${refusal}. Allowed hosts are ${allowedHosts.join(', ') || 'none'}; the server’s settings define them.`
  throw new RolloutError('request.malformed', message, { status: 422, param: 'body.callback_url' })
}

const DEFAULT_ATTEMPTS = 30
const DEFAULT_TIMEOUT_MS = 60_000
const DEFAULT_CONNECT_TIMEOUT_MS = 10_000
const DEFAULT_PER_HOST = 4
const DEFAULT_POLL_MS = 1000
/** Callbacks that one server sends or queues at the same time. */
const MAX_HELD = 256
const MAX_CLAIMED_AT_ONCE = 64

/** Sends due callbacks; any number of servers may run one. */
export class CallbackSender implements AsyncDisposable {
  readonly #deps: CallbackDeps
  readonly #attempts: number
  readonly #timeoutMs: number
  readonly #http: CallbackHttp
  readonly #hosts: HostQueue
  readonly #random: () => number
  readonly #stop = new AbortController()
  readonly #running = new Set<Promise<void>>()
  readonly #claimedAt = new Map<number, number>()
  readonly #loop: Promise<void>
  readonly #mayBeDue: Notifier

  constructor(options: CallbackOptions, deps: CallbackDeps) {
    const { attempts = DEFAULT_ATTEMPTS, timeoutMs = DEFAULT_TIMEOUT_MS, perHost = DEFAULT_PER_HOST } = options
    this.#deps = deps
    this.#mayBeDue = new Notifier(deps.clock)
    this.#attempts = attempts
    this.#timeoutMs = timeoutMs
    this.#random = deps.random ?? Math.random
    this.#hosts = new HostQueue(perHost, this.#random)
    this.#http = new CallbackHttp({
      allowed: createAllowedHosts(options.allowedHosts ?? DEFAULT_ALLOWED_HOSTS),
      own: options.own ?? new OwnAddresses(),
      secret: options.secret,
      timeoutMs,
      connectTimeoutMs: options.connectTimeoutMs ?? DEFAULT_CONNECT_TIMEOUT_MS,
      connectionsPerHost: perHost,
      now: () => deps.clock.now(),
      openTaskResult: deps.openTaskResult,
      resolve: deps.resolve,
    })
    this.#loop = this.#run()
  }

  /** A callback may be due: reads the table at once. */
  wake(): void {
    this.#mayBeDue.notify()
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stop.abort()
    await this.#loop
    // Releases the claims, so that another server can send the callbacks at once.
    await Promise.all(this.#hosts.clear().map((due) => this.#settle(due, this.#released())))
    await Promise.all(this.#running)
    await this.#http[Symbol.asyncDispose]()
  }

  async #run(): Promise<void> {
    while (!this.#stop.signal.aborted) {
      const isMore = await this.#claimSome()
      if (!isMore) await this.#mayBeDue.wait(this.#deps.pollMs ?? DEFAULT_POLL_MS, this.#stop.signal)
    }
  }

  /** Whether more callbacks may be due. */
  async #claimSome(): Promise<boolean> {
    const { dispatch, clock, logger } = this.#deps
    const limit = Math.min(MAX_CLAIMED_AT_ONCE, MAX_HELD - this.#claimedAt.size)
    if (limit <= 0) return false
    let claimed: DueCallback[]
    try {
      claimed = await dispatch.claimCallbacks({ claimMs: this.#claimMs, limit }, clock.now())
    } catch (error) {
      logger.warn({ err: error }, 'due callbacks could not be read and will be retried')
      return false
    }
    for (const due of claimed) this.#start(due)
    return claimed.length === limit
  }

  /** Longer than the longest wait in the host queue plus a try. */
  get #claimMs(): number {
    return 3 * this.#timeoutMs + 10_000
  }

  #start(due: DueCallback): void {
    // This server already handles the callback; its claim expired early because a clock jumped.
    if (this.#claimedAt.has(due.id)) return
    const now = this.#deps.clock.now()
    const admission = this.#hosts.admit(due, now)
    if (admission.kind === 'postpone') {
      this.#track(this.#settle(due, { kind: 'postponed', at: admission.untilMs }))
      return
    }
    this.#claimedAt.set(due.id, now)
    if (admission.kind === 'start') this.#track(this.#work(due))
  }

  #track(work: Promise<void>): void {
    const run = work.finally(() => this.#running.delete(run))
    this.#running.add(run)
  }

  /** Sends this callback, then those that waited for the same host. */
  async #work(first: DueCallback): Promise<void> {
    for (let due: DueCallback | undefined = first; due !== undefined;) {
      const isHostDown = await this.#try(due)
      due = this.#hosts.end(due, isHostDown, this.#deps.clock.now())
    }
    this.wake()
  }

  /** Whether the host was unreachable. */
  async #try(due: DueCallback): Promise<boolean> {
    const { clock, logger } = this.#deps
    const waitedMs = clock.now() - (this.#claimedAt.get(due.id) ?? 0)
    if (this.#stop.signal.aborted || waitedMs > this.#timeoutMs) {
      await this.#settle(due, this.#released())
      return false
    }
    try {
      const delivery = await this.#http.deliver(due, this.#stop.signal)
      const end = endOf(delivery, { tries: due.tries, attempts: this.#attempts }, clock.now(), this.#random())
      if (end.kind === 'dead') {
        const { taskId, url, tries } = due
        logger.warn({ taskId, url, tries, error: end.error }, 'callback is dead; it can be resent with the API')
      }
      await this.#settle(due, end)
      return delivery.kind === 'failed' && delivery.isHostDown
    } catch (error) {
      if (!this.#stop.signal.aborted) logger.error({ err: error, taskId: due.taskId }, 'callback failed')
      await this.#settle(due, this.#released())
      return false
    }
  }

  #released(): CallbackEnd {
    return { kind: 'postponed', at: this.#deps.clock.now() }
  }

  /** A callback that could not be settled becomes due again when its claim expires. */
  async #settle(due: DueCallback, end: CallbackEnd): Promise<void> {
    this.#claimedAt.delete(due.id)
    try {
      await this.#deps.dispatch.settleCallback(due.id, end)
    } catch (error) {
      this.#deps.logger.warn({ err: error, taskId: due.taskId }, 'callback could not be settled and may be sent again')
    }
  }
}
