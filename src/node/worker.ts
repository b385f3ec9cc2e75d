import type { Logger } from 'pino'
import { pause } from '../client/send.ts'
import { Notifier } from '../lib/async/notifier.ts'
import type { Clock } from '../lib/async/clock.ts'
import { onAbort, untilAborted } from '../lib/async/until-aborted.ts'
import type { RolloutError } from '../model/failure.ts'
import type { NodeRegistrationRequest } from '../model/node.ts'
import type { SessionStatus } from '../model/session.ts'
import { Backoff } from './server-link/backoff.ts'
import { FailurePause } from './server-link/failure-pause.ts'
import { FreeDisk } from './server-link/free-disk.ts'
import { HeldSessions } from './server-link/held-sessions.ts'
import { countCapacity, type LeaseCapacity } from './server-link/lease-capacity.ts'
import { loadFinished } from './server-link/load-finished.ts'
import { Membership } from './server-link/membership.ts'
import { PolicyLink, type PolicyGateway } from './server-link/policy-link.ts'
import { RetentionPolicy, UploadPolicy } from './server-link/policies.ts'
import { RenewalClock } from './server-link/renewal-clock.ts'
import { LEAVE_MS, ServerClient } from './server-link/server-client.ts'
import type { WorkerClient, WorkerNode } from './server-link/worker-node.ts'

export interface WorkerOptions {
  client: WorkerClient
  /** Must be started with `recovery: 'report'`. The caller disposes of the node after the worker. */
  node: WorkerNode
  /** The gateway of the node, which applies the server's policy state. */
  gateway: PolicyGateway
  nodeId: string
  registration: Omit<NodeRegistrationRequest, 'node_id'>
  /** Labels of the node, which sessions may require; see `findLabels`. */
  labels: readonly string[]
  /** Returns the images and workspaces cached on this node; the server prefers sessions that use them. */
  affinity?: () => readonly string[]
  /** The version of Polar. */
  version: string
  uploads?: Partial<UploadPolicy>
  retention?: Partial<RetentionPolicy>
  /** The node leases no session while its disk has less free space. Default 1024. */
  minFreeMb?: number
  /** How long `drain` waits for running sessions before it releases their leases. Default: without limit. */
  drainGraceMs?: number
  logger: Logger
  clock: Clock
  /** Monotonic milliseconds. Default `performance.now`. */
  monotonic?: () => number
  random?: () => number
}

/** Counts of held and of ended sessions since the worker started, for operators. */
export interface WorkerMetrics {
  held: number
  undelivered: number
  accepted: number
  lost: number
  released: number
  isDraining: boolean
  isServerAway: boolean
  isDiskLow: boolean
  /** Too many sessions failed on this node, so it leases no new sessions for a while. */
  isPaused: boolean
  /** Absent: unknown. */
  freeDiskMb?: number
}

/** How often the capacity is computed again without a notification: free disk space changes without one. */
const RECHECK_MS = 5000
const RETRY = { baseMs: 500, maxMs: 30_000 }
const DEFAULT_MIN_FREE_MB = 1024
/** Undelivered results per run slot at which the node stops leasing sessions. */
const MAX_UNDELIVERED = 16
/** The server's limit on the sessions of one lease request. */
const MAX_LEASED = 1000
const NO_CAPACITY: LeaseCapacity = { slots: 0, ahead: 0 }

/** Sessions that occupy or will occupy a run slot. */
const BEFORE_POST_RUN: ReadonlySet<SessionStatus> = new Set(['REGISTERED', 'INITIALIZING', 'READY', 'RUNNING'])

/**
 * Connects a node to a server: leases sessions, renews their leases and delivers their results. The server may be
 * unreachable for any time; results are kept on disk and delivered later. Only the server decides whether an attempt
 * still counts, so a session whose lease may have expired is finished and delivered nevertheless.
 */
export class Worker implements AsyncDisposable {
  readonly #options: WorkerOptions
  readonly #node: WorkerNode
  readonly #random: () => number
  readonly #server: ServerClient
  readonly #membership: Membership
  readonly #policy: PolicyLink
  readonly #sessions: HeldSessions
  readonly #disk: FreeDisk
  readonly #failurePause: FailurePause
  readonly #renewals: RenewalClock
  /** Notified when there may be capacity for more sessions. */
  readonly #capacityChanged: Notifier
  /** Aborted to end the lease request that waits for sessions. */
  readonly #stopLeasing = new AbortController()
  /** Aborted to release the leases of all unfinished sessions. */
  readonly #releaseNow = new AbortController()
  readonly #stop = new AbortController()
  readonly #ended = Promise.withResolvers<void>()
  #leaseMs = 0
  #draining: Promise<void> | undefined
  #stopGrace: (() => void) | undefined
  #leaseLoop = Promise.resolve()
  #loops: Promise<unknown> = Promise.resolve()

  private constructor(options: WorkerOptions) {
    const { node, nodeId, clock, logger } = options
    const monotonic = options.monotonic ?? (() => performance.now())
    this.#options = options
    this.#node = node
    this.#random = options.random ?? Math.random
    this.#capacityChanged = new Notifier(clock)
    this.#renewals = new RenewalClock(clock, monotonic, this.#random)
    this.#server = new ServerClient(options)
    this.#failurePause = new FailurePause(monotonic, logger)
    this.#disk = new FreeDisk({
      dir: node.dir,
      minFreeMb: options.minFreeMb ?? DEFAULT_MIN_FREE_MB,
      now: monotonic,
      logger,
    })
    this.#sessions = new HeldSessions({
      node,
      nodeId,
      server: this.#server,
      uploads: UploadPolicy.parse(options.uploads ?? {}),
      retention: RetentionPolicy.parse(options.retention ?? {}),
      clock,
      monotonic,
      random: this.#random,
      logger,
      failurePause: this.#failurePause,
      onCapacity: () => this.#capacityChanged.notify(),
      onChanged: (held) => {
        this.#capacityChanged.notify()
        if (this.#sessions.has(held)) this.#renewals.changed(held)
      },
    })
    this.#policy = new PolicyLink({
      server: this.#server,
      gateway: options.gateway,
      onError: (error) => this.#rejoinIfNeeded(error),
      retry: RETRY,
      clock,
      random: this.#random,
      logger,
    })
    this.#membership = new Membership({
      server: this.#server,
      about: { ...options.registration, labels: [...options.labels], version: options.version },
      held: () => this.#sessions.held,
      onJoined: async ({ lease_ms, max_part_bytes, outcomes, policy }, signal) => {
        this.#leaseMs = lease_ms
        this.#sessions.limitParts(max_part_bytes)
        this.#renewals.every(lease_ms / 3)
        this.#sessions.applyRenewals(outcomes)
        await this.#policy.join(policy, signal)
      },
      retry: RETRY,
      clock,
      random: this.#random,
      logger,
    })
    // A caller that does not read `ended` must not get an unhandled rejection.
    this.#ended.promise.catch(() => {})
  }

  /** Resolves when the node has joined; retries while the server is unreachable. Rejects if the server refuses the node. */
  static async start(options: WorkerOptions, signal?: AbortSignal): Promise<Worker> {
    const worker = new Worker(options)
    await worker.#join(signal ?? new AbortController().signal)
    return worker
  }

  /** Resolves when the node has drained and left. Rejects if another process has joined with the same node id. */
  get ended(): Promise<void> {
    return this.#ended.promise
  }

  get metrics(): WorkerMetrics {
    const { freeMb } = this.#disk
    return {
      held: this.#sessions.held.length,
      undelivered: this.#sessions.undelivered,
      ...this.#sessions.counts,
      isDraining: this.#isDraining,
      isServerAway: this.#sessions.isServerAway || this.#renewals.hasFailed,
      isDiskLow: this.#disk.isLow,
      isPaused: this.#failurePause.isPaused,
      freeDiskMb: freeMb === undefined ? undefined : Math.floor(freeMb),
    }
  }

  get #isDraining(): boolean {
    return this.#draining !== undefined
  }

  async #join(signal: AbortSignal): Promise<void> {
    const finished = await loadFinished(this.#node, this.#options.logger)
    for (const outcome of finished) this.#sessions.addFinished(outcome)
    await this.#membership.join(signal)
    for (const outcome of finished) this.#sessions.deliver(outcome)
    await this.#sessions.sweep().catch(() => {})
    this.#leaseLoop = this.#leaseSessions()
    this.#loops = Promise.all([this.#leaseLoop, this.#renewLeases(), this.#policy.run(this.#stop.signal)])
  }

  async #leaseSessions(): Promise<void> {
    const backoff = new Backoff({ ...RETRY, random: this.#random })
    while (!this.#isDraining && !this.#stopLeasing.signal.aborted) {
      const capacity = await this.#countCapacity()
      if (capacity.slots <= 0) await this.#capacityChanged.wait(RECHECK_MS)
      else if (await this.#lease(capacity)) backoff.reset()
      else await pause(backoff.next(), this.#stopLeasing.signal, this.#options.clock).catch(() => {})
    }
  }

  /** Zero while too many results are undelivered, the disk is full, or all sessions fail on this node. */
  async #countCapacity(): Promise<LeaseCapacity> {
    const { widths, sessions } = this.#node
    if (this.#sessions.undelivered > MAX_UNDELIVERED * widths.run || (await this.#disk.check())) return NO_CAPACITY
    const busy = sessions.filter(({ status }) => BEFORE_POST_RUN.has(status)).length
    return countCapacity(widths, busy, Math.min(busy + MAX_LEASED, this.#failurePause.maxSessions))
  }

  /** Returns false if the request failed and is to be retried after a delay. */
  async #lease(capacity: LeaseCapacity): Promise<boolean> {
    const { affinity, logger } = this.#options
    try {
      const cached = [...(affinity?.() ?? [])]
      const { orders, draining } = await this.#server.lease(
        capacity,
        cached,
        this.#sessions.held,
        this.#stopLeasing.signal,
      )
      if (draining) this.#drainByServer()
      for (const { order, lease_ms } of orders) {
        this.#leaseMs = lease_ms
        // A session that was leased while the node began to drain is released again.
        this.#sessions.start(order, { isAccepted: !this.#isDraining })
      }
      return true
    } catch (error) {
      if (this.#stopLeasing.signal.aborted) return true
      logger.warn({ err: error }, 'the lease request failed; retrying')
      await this.#rejoinIfNeeded(error)
      return false
    }
  }

  async #renewLeases(): Promise<void> {
    while (!this.#stop.signal.aborted) {
      const due = await this.#renewals.next()
      if (this.#stop.signal.aborted) return
      const leases = due === 'all' ? this.#sessions.held : due.filter((held) => this.#sessions.has(held))
      try {
        const { outcomes, draining } = await this.#server.renew(leases, {
          ms: this.#leaseMs / 3,
          metrics: this.#node.metrics,
          progressOf: (sessionId) => this.#node.progressOf(sessionId),
        })
        this.#sessions.applyRenewals(outcomes)
        this.#renewals.succeeded(due)
        if (draining) this.#drainByServer()
        await this.#sessions.retryReleases()
      } catch (error) {
        if (this.#stop.signal.aborted) return
        this.#options.logger.warn({ err: error }, 'leases could not be renewed; retrying')
        this.#renewals.failed(due)
        await this.#rejoinIfNeeded(error)
      }
      this.#sessions.dropExpired(this.#leaseMs)
    }
  }

  async #rejoinIfNeeded(error: unknown): Promise<void> {
    const replaced = await this.#membership.rejoin(error, this.#stop.signal)
    if (replaced !== undefined) this.#endReplaced(replaced)
  }

  #endReplaced(error: RolloutError): void {
    this.#options.logger.error({ err: error }, 'another process has joined with the same node id; this process stops')
    for (const held of this.#sessions.held)
      if (!held.isFinished) this.#sessions.drop(held, 'another process has joined with the same node id')
    this.#ended.reject(error)
    this.#end()
  }

  /** Leases nothing more, finishes and delivers all held sessions, and leaves. After the grace time it releases the rest. */
  drain(): Promise<void> {
    const { drainGraceMs, clock } = this.#options
    // The grace time also applies if the server began the drain, which has no time limit.
    if (drainGraceMs !== undefined && this.#stopGrace === undefined) {
      this.#stopGrace = clock.after(drainGraceMs, () => this.#releaseNow.abort())
    }
    return (this.#draining ??= this.#announceAndDrain())
  }

  /** Releases all unfinished sessions at once and leaves. Results that cannot be delivered stay on disk. */
  release(): Promise<void> {
    this.#releaseNow.abort()
    return this.drain()
  }

  #drainByServer(): void {
    if (this.#isDraining || this.#stop.signal.aborted) return
    this.#options.logger.info('the server drains this node; it leases no more sessions')
    this.#draining = this.#finishAndLeave()
  }

  async #announceAndDrain(): Promise<void> {
    if (this.#stop.signal.aborted) return
    // The server then answers the waiting lease request, and leases no session that would have to be released.
    const announced = this.#server.drain().catch(() => {})
    await Promise.race([announced, untilAborted(this.#releaseNow.signal)])
    await this.#finishAndLeave()
  }

  async #finishAndLeave(): Promise<void> {
    const { clock } = this.#options
    this.#capacityChanged.notify()
    const stop = clock.after(LEAVE_MS, () => this.#stopLeasing.abort())
    onAbort(this.#releaseNow.signal, () => this.#stopLeasing.abort())
    await this.#sessions.untilEmpty(this.#releaseNow.signal)
    if (this.#sessions.held.length > 0) {
      await this.#sessions.releaseUnfinished()
      const late = new AbortController()
      const stopTimer = clock.after(LEAVE_MS, () => late.abort())
      await this.#sessions.untilEmpty(late.signal)
      stopTimer()
    }
    // The response of a pending lease request may contain sessions, which are then released.
    await this.#leaseLoop
    stop()
    await this.#leave()
    this.#end()
  }

  /** Does not leave with undelivered results: leaving releases their leases. The next process delivers them. */
  async #leave(): Promise<void> {
    const { logger } = this.#options
    const { undelivered: results } = this.#sessions
    if (results > 0) logger.warn({ results }, 'results are undelivered; start the node again to deliver them')
    else {
      await this.#server.leave().catch((error: unknown) => {
        logger.warn({ err: error }, 'the leave request failed')
      })
    }
  }

  #end(): void {
    this.#stopLeasing.abort()
    this.#stopGrace?.()
    this.#stop.abort(new Error('The worker ended.'))
    this.#server.close()
    this.#sessions[Symbol.dispose]()
    this.#capacityChanged.notify()
    this.#renewals.stop()
    this.#ended.resolve()
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.release()
    await this.#loops
  }
}
