import type { Logger } from 'pino'
import { pause } from '../client/send.ts'
import { Notifier } from '../lib/async/notifier.ts'
import type { Clock } from '../lib/async/clock.ts'
import { untilAborted } from '../lib/async/until-aborted.ts'
import type { RolloutError } from '../model/failure.ts'
import type { NodeRegistrationRequest } from '../model/node.ts'
import type { SessionStatus } from '../model/session.ts'
import { Backoff } from './server-link/backoff.ts'
import { Brake } from './server-link/failure-pause.ts'
import { FreeDisk } from './server-link/free-disk.ts'
import { Hands } from './server-link/held-sessions.ts'
import { countRoom, type LeaseRoom } from './server-link/lease-capacity.ts'
import { loadFinished } from './server-link/load-finished.ts'
import { Membership } from './server-link/membership.ts'
import { RetentionPolicy, UploadPolicy } from './server-link/policies.ts'
import { RenewalClock } from './server-link/renewal-clock.ts'
import { PARTING_MS, ServerLine } from './server-link/server-client.ts'
import type { WorkerClient, WorkerNode } from './server-link/worker-node.ts'

export interface WorkerOptions {
  client: WorkerClient
  /** Started with `recovery: 'report'`. Belongs to the caller, and is disposed of after the worker. */
  node: WorkerNode
  nodeId: string
  registration: Omit<NodeRegistrationRequest, 'node_id'>
  /** What it has, for sessions that need it; see `findLabels`. */
  labels: readonly string[]
  /** What is warm here now: preferred, not demanded. */
  affinity?: () => readonly string[]
  /** Of Polar. */
  version: string
  uploads?: Partial<UploadPolicy>
  retention?: Partial<RetentionPolicy>
  /** With less free where its folder lies, it takes nothing new. Default 1024. */
  minFreeMb?: number
  /** How long `drain` waits for what runs before it gives it back. Default: as long as it takes. */
  drainGraceMs?: number
  logger: Logger
  clock: Clock
  /** Milliseconds that only go forward. Default `performance.now`. */
  monotonic?: () => number
  random?: () => number
}

/** For operators: what a worker has done since it began, and has on its hands. */
export interface WorkerMetrics {
  held: number
  undelivered: number
  accepted: number
  lost: number
  released: number
  isDraining: boolean
  isServerAway: boolean
  isDiskLow: boolean
  /** Too much has failed here, so nothing new is taken for a while. */
  isResting: boolean
  /** Absent: not known. */
  freeDiskMb?: number
}

/** Looked at again when nothing happens: the disk, mostly. */
const LOOK_AGAIN_MS = 5000
const AWAY = { baseMs: 500, maxMs: 30_000 }
const USUAL_FREE_MB = 1024
/** For each place to run in: that many results wait to be taken, and then no more are made. */
const MOST_UNDELIVERED = 16
/** That a server takes in one call. */
const MOST_LEASED = 1000
const NO_ROOM: LeaseRoom = { slots: 0, ahead: 0 }

/** Those that are, or will soon be, in the way of others that want to run. */
const UP_TO_RUNNING: ReadonlySet<SessionStatus> = new Set(['REGISTERED', 'INITIALIZING', 'READY', 'RUNNING'])

/**
 * Makes a node a member of a server: takes orders, says that it still works on them, brings the results. The server may
 * be away for any time; what ends meanwhile is kept on disk and delivered later. Whether an attempt still counts is for
 * the server to say: what may have been lost is finished and offered all the same.
 */
export class Worker implements AsyncDisposable {
  readonly #options: WorkerOptions
  readonly #node: WorkerNode
  readonly #random: () => number
  readonly #line: ServerLine
  readonly #membership: Membership
  readonly #hands: Hands
  readonly #disk: FreeDisk
  readonly #brake: Brake
  readonly #renewals: RenewalClock
  /** Rung when there may be room for more. */
  readonly #room: Notifier
  /** Aborted when no more work is to be waited for. */
  readonly #noMore = new AbortController()
  /** Aborted when what is unfinished is to be given back. */
  readonly #hurry = new AbortController()
  readonly #stop = new AbortController()
  readonly #ended = Promise.withResolvers<void>()
  #leaseMs = 0
  #draining: Promise<void> | undefined
  #stopGrace: (() => void) | undefined
  #taking = Promise.resolve()
  #loops: Promise<unknown> = Promise.resolve()

  private constructor(options: WorkerOptions) {
    const { node, nodeId, clock, logger } = options
    const monotonic = options.monotonic ?? (() => performance.now())
    this.#options = options
    this.#node = node
    this.#random = options.random ?? Math.random
    this.#room = new Notifier(clock)
    this.#renewals = new RenewalClock(clock, monotonic, this.#random)
    this.#line = new ServerLine(options)
    this.#brake = new Brake(monotonic, logger)
    this.#disk = new FreeDisk({
      dir: node.dir,
      minFreeMb: options.minFreeMb ?? USUAL_FREE_MB,
      now: monotonic,
      logger,
    })
    this.#hands = new Hands({
      node,
      nodeId,
      line: this.#line,
      uploads: UploadPolicy.parse(options.uploads ?? {}),
      retention: RetentionPolicy.parse(options.retention ?? {}),
      clock,
      monotonic,
      random: this.#random,
      logger,
      brake: this.#brake,
      onRoom: () => this.#room.notify(),
      onChanged: (held) => {
        this.#room.notify()
        if (this.#hands.has(held)) this.#renewals.changed(held)
      },
    })
    this.#membership = new Membership({
      line: this.#line,
      about: { ...options.registration, labels: [...options.labels], version: options.version },
      held: () => this.#hands.held,
      onJoined: ({ lease_ms, max_part_bytes, outcomes }) => {
        this.#leaseMs = lease_ms
        this.#hands.limitParts(max_part_bytes)
        this.#renewals.every(lease_ms / 3)
        this.#hands.heed(outcomes)
      },
      away: AWAY,
      clock,
      random: this.#random,
      logger,
    })
    // Who does not ask is not to be ended by it.
    this.#ended.promise.catch(() => {})
  }

  /** Resolves once the server knows it; waits for a server that is not there. Rejects when the server refuses it. */
  static async start(options: WorkerOptions, signal?: AbortSignal): Promise<Worker> {
    const worker = new Worker(options)
    await worker.#begin(signal ?? new AbortController().signal)
    return worker
  }

  /** Resolves when it has drained, by us or by the server, and left. Rejects when another process has taken its name. */
  get ended(): Promise<void> {
    return this.#ended.promise
  }

  get metrics(): WorkerMetrics {
    const { freeMb } = this.#disk
    return {
      held: this.#hands.held.length,
      undelivered: this.#hands.undelivered,
      ...this.#hands.counts,
      isDraining: this.#isDraining,
      isServerAway: this.#hands.isServerAway || this.#renewals.hasFailed,
      isDiskLow: this.#disk.isLow,
      isResting: this.#brake.isResting,
      ...(freeMb === undefined ? {} : { freeDiskMb: Math.floor(freeMb) }),
    }
  }

  get #isDraining(): boolean {
    return this.#draining !== undefined
  }

  async #begin(signal: AbortSignal): Promise<void> {
    const finished = await loadFinished(this.#node, this.#options.logger)
    for (const outcome of finished) this.#hands.remember(outcome)
    await this.#membership.begin(signal)
    for (const outcome of finished) this.#hands.deliver(outcome)
    await this.#hands.sweep().catch(() => {})
    this.#taking = this.#takeWork()
    this.#loops = Promise.all([this.#taking, this.#renew()])
  }

  async #takeWork(): Promise<void> {
    const backoff = new Backoff({ ...AWAY, random: this.#random })
    while (!this.#isDraining && !this.#noMore.signal.aborted) {
      const room = await this.#countRoom()
      if (room.slots <= 0) await this.#room.wait(LOOK_AGAIN_MS)
      else if (await this.#lease(room)) backoff.reset()
      else await pause(backoff.next(), this.#noMore.signal, this.#options.clock).catch(() => {})
    }
  }

  /** None while results pile up, the disk is full, or nothing succeeds here. */
  async #countRoom(): Promise<LeaseRoom> {
    const { widths, sessions } = this.#node
    if (this.#hands.undelivered > MOST_UNDELIVERED * widths.run || (await this.#disk.check())) return NO_ROOM
    const busy = sessions.filter(({ status }) => UP_TO_RUNNING.has(status)).length
    return countRoom(widths, busy, Math.min(busy + MOST_LEASED, this.#brake.most))
  }

  /** False when it should be tried again, later. */
  async #lease(room: LeaseRoom): Promise<boolean> {
    const { affinity, logger } = this.#options
    try {
      const warm = [...(affinity?.() ?? [])]
      const { orders, draining } = await this.#line.lease(room, warm, this.#hands.held, this.#noMore.signal)
      if (draining) this.#drainBecause('the server says so')
      for (const { order, lease_ms } of orders) {
        this.#leaseMs = lease_ms
        // One that came while we were saying that no more should is given back.
        this.#hands.take(order, { isWanted: !this.#isDraining })
      }
      return true
    } catch (error) {
      if (this.#noMore.signal.aborted) return true
      logger.warn({ err: error }, 'no work could be asked for')
      await this.#afterRefusal(error)
      return false
    }
  }

  async #renew(): Promise<void> {
    while (!this.#stop.signal.aborted) {
      const due = await this.#renewals.next()
      if (this.#stop.signal.aborted) return
      const asked = due === 'all' ? this.#hands.held : due.filter((held) => this.#hands.has(held))
      try {
        const { outcomes, draining } = await this.#line.renew(asked, {
          ms: this.#leaseMs / 3,
          metrics: this.#node.metrics,
          progressOf: (sessionId) => this.#node.progressOf(sessionId),
        })
        this.#hands.heed(outcomes)
        this.#renewals.succeeded(due)
        if (draining) this.#drainBecause('the server says so')
        await this.#hands.giveBackOwed()
      } catch (error) {
        if (this.#stop.signal.aborted) return
        this.#options.logger.warn({ err: error }, 'leases could not be renewed')
        this.#renewals.failed(due)
        await this.#afterRefusal(error)
      }
      this.#hands.dropLapsed(this.#leaseMs)
    }
  }

  async #afterRefusal(error: unknown): Promise<void> {
    const replaced = await this.#membership.restore(error, this.#stop.signal)
    if (replaced !== undefined) this.#giveWay(replaced)
  }

  #giveWay(error: RolloutError): void {
    this.#options.logger.error({ err: error }, 'another process has joined by this name; this one stops')
    for (const held of this.#hands.held) if (!held.isFinished) this.#hands.drop(held, 'another process has our name')
    this.#ended.reject(error)
    this.#end()
  }

  /** Takes nothing more, finishes and delivers what it has, and leaves. What takes longer than the grace time is given back. */
  drain(): Promise<void> {
    const { drainGraceMs, clock } = this.#options
    // Also where the server has begun it, with all the time in the world.
    if (drainGraceMs !== undefined && this.#stopGrace === undefined) {
      this.#stopGrace = clock.after(drainGraceMs, () => this.#hurry.abort())
    }
    return (this.#draining ??= this.#drainPolitely())
  }

  /** Gives back what is not finished, at once, and leaves. What is finished and cannot be delivered stays on disk. */
  release(): Promise<void> {
    this.#hurry.abort()
    return this.drain()
  }

  #drainBecause(why: string): void {
    if (this.#isDraining || this.#stop.signal.aborted) return
    this.#options.logger.info({ why }, 'the node takes no more sessions')
    this.#draining = this.#finishAndLeave()
  }

  async #drainPolitely(): Promise<void> {
    if (this.#stop.signal.aborted) return
    // Then whoever waits for work in our name is answered, and nothing is given to us that we would have to give back.
    const told = this.#line.drain().catch(() => {})
    await Promise.race([told, untilAborted(this.#hurry.signal)])
    await this.#finishAndLeave()
  }

  async #finishAndLeave(): Promise<void> {
    const { clock } = this.#options
    this.#room.notify()
    const stop = clock.after(PARTING_MS, () => this.#noMore.abort())
    this.#hurry.signal.addEventListener('abort', () => this.#noMore.abort(), { once: true })
    if (this.#hurry.signal.aborted) this.#noMore.abort()
    await this.#hands.untilEmpty(this.#hurry.signal)
    if (this.#hands.held.length > 0) {
      await this.#hands.giveUpUnfinished()
      const late = new AbortController()
      const hurry = clock.after(PARTING_MS, () => late.abort())
      await this.#hands.untilEmpty(late.signal)
      hurry()
    }
    // An answer that is still on its way may bring more; it is given back when it comes.
    await this.#taking
    stop()
    await this.#leave()
    this.#end()
  }

  /** Not while results are left: who leaves gives up all it holds, and they are brought when it comes again. */
  async #leave(): Promise<void> {
    const { logger } = this.#options
    const { undelivered: results } = this.#hands
    if (results > 0) logger.warn({ results }, 'results are left undelivered; start the node again to bring them')
    else {
      await this.#line.leave().catch((error: unknown) => {
        logger.warn({ err: error }, 'the server could not be told that the node has left')
      })
    }
  }

  #end(): void {
    this.#noMore.abort()
    this.#stopGrace?.()
    this.#stop.abort(new Error('The worker has ended.'))
    this.#line.close()
    this.#hands[Symbol.dispose]()
    this.#room.notify()
    this.#renewals.stop()
    this.#ended.resolve()
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.release()
    await this.#loops
  }
}
