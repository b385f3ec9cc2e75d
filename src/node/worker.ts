import { randomUUID } from 'node:crypto'
import type { Logger } from 'pino'
import { pause } from '../client/send.ts'
import type { Clock } from '../lib/clock.ts'
import { RolloutError } from '../model/failure.ts'
import type { NodeRegistrationRequest } from '../model/node.ts'
import type { SessionOrder } from '../model/session-order.ts'
import type { SessionOutcome } from '../model/session-outcome.ts'
import { isTerminal, type SessionStatus } from '../model/session.ts'
import { pastFolder, SessionFolder, sessionsFolder } from './session-folder.ts'
import { Backoff } from './worker/backoff.ts'
import { Bell } from './worker/bell.ts'
import { Deliveries, type DeliveryEnd } from './worker/deliveries.ts'
import { FreeDisk } from './worker/free-disk.ts'
import { LeaseBook, type HeldLease } from './worker/lease-book.ts'
import { loadFinished } from './worker/load-finished.ts'
import { offer, type OfferClient } from './worker/offer.ts'
import { PastSessions } from './worker/past-sessions.ts'
import { RetentionPolicy, UploadPolicy } from './worker/policies.ts'
import { RenewalClock } from './worker/renewal-clock.ts'
import { isForbidden, troubleOf } from './worker/server-errors.ts'
import type { WorkerClient, WorkerNode } from './worker/worker-node.ts'

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
  /** Absent: not known. */
  freeDiskMb?: number
}

type Renewed = Awaited<ReturnType<WorkerClient['renewLeases']>>['outcomes'][number]

/** How long a call for work may wait for some, at the server. */
const LONG_POLL_SECONDS = 30
const CALL_MS = 30_000
/** Of one part of a result, over a slow line. */
const UPLOAD_MS = 120_000
/** For what is polite to say before going, to a server that may be gone itself. */
const PARTING_MS = 5000
/** Looked at again when nothing happens: the disk, mostly. */
const LOOK_AGAIN_MS = 5000
const AWAY = { baseMs: 500, maxMs: 30_000 }
const PART_BYTES = 4 * 1024 * 1024
const MOST_LEASES = 10_000
const USUAL_FREE_MB = 1024

/** Those that are, or will soon be, in the way of others that want to run. */
const UP_TO_RUNNING: ReadonlySet<SessionStatus> = new Set(['REGISTERED', 'INITIALIZING', 'READY', 'RUNNING'])

/**
 * Makes a node a member of a server: takes orders, says that it still works on them, brings the results. The server may
 * be away for any time; what ends meanwhile is kept on disk and delivered later. Whether an attempt still counts is for
 * the server to say: what may have been lost is finished and offered all the same.
 */
export class Worker implements AsyncDisposable {
  readonly #options: WorkerOptions
  readonly #client: WorkerClient
  readonly #node: WorkerNode
  readonly #monotonic: () => number
  readonly #random: () => number
  readonly #bootId = randomUUID()
  readonly #book = new LeaseBook()
  readonly #deliveries: Deliveries
  readonly #past: PastSessions
  readonly #disk: FreeDisk
  readonly #renewals: RenewalClock
  /** Rung when there may be room for more. */
  readonly #room: Bell
  /** Aborted when no more work is to be waited for. */
  readonly #noMore = new AbortController()
  /** Aborted when what is unfinished is to be given back. */
  readonly #hurry = new AbortController()
  readonly #stop = new AbortController()
  readonly #ended = Promise.withResolvers<void>()
  readonly #counts = { accepted: 0, lost: 0, released: 0 }
  /** To be given back to a server that could not be told so yet. */
  readonly #owed: HeldLease[] = []
  #leaseMs = 0
  #partBytes = PART_BYTES
  #joining: Promise<void> | undefined
  #draining: Promise<void> | undefined
  #taking = Promise.resolve()
  #loops: Promise<unknown> = Promise.resolve()

  private constructor(options: WorkerOptions) {
    const { client, node, clock, logger, retention } = options
    const uploads = UploadPolicy.parse(options.uploads ?? {})
    this.#options = options
    this.#client = client
    this.#node = node
    this.#monotonic = options.monotonic ?? (() => performance.now())
    this.#random = options.random ?? Math.random
    this.#room = new Bell(clock)
    this.#renewals = new RenewalClock(clock, this.#monotonic)
    this.#past = new PastSessions({
      dir: pastFolder(node.dir),
      policy: RetentionPolicy.parse(retention ?? {}),
      clock,
      problem: (error) => logger.warn({ err: error }, 'what is left of past sessions could not be removed'),
    })
    this.#disk = new FreeDisk({
      dir: node.dir,
      minFreeMb: options.minFreeMb ?? USUAL_FREE_MB,
      now: this.#monotonic,
      logger,
    })
    this.#deliveries = new Deliveries({
      width: uploads.atOnce,
      offer: (outcome, how) =>
        offer(this.#patientClient(), {
          nodeId: options.nodeId,
          outcome,
          uploads,
          folder: SessionFolder.of(sessionsFolder(node.dir), outcome.sessionId),
          partBytes: this.#partBytes,
          ...how,
        }),
      isWanted: (outcome, signal) => this.#isWanted(outcome, signal),
      onEnd: (outcome, end) => this.#delivered(outcome, end),
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
      held: this.#book.size,
      undelivered: this.#deliveries.size,
      ...this.#counts,
      isDraining: this.#isDraining,
      isServerAway: this.#deliveries.isServerAway || this.#renewals.hasFailed,
      isDiskLow: this.#disk.isLow,
      ...(freeMb === undefined ? {} : { freeDiskMb: Math.floor(freeMb) }),
    }
  }

  get #isDraining(): boolean {
    return this.#draining !== undefined
  }

  async #begin(signal: AbortSignal): Promise<void> {
    const finished = await loadFinished(this.#node, this.#options.logger)
    for (const { sessionId, attempt } of finished) {
      this.#book.add({ sessionId, attempt, isFinished: true, knownAt: this.#monotonic() })
    }
    await this.#joinAtLast(signal)
    for (const outcome of finished) {
      if (this.#book.get(outcome.sessionId, outcome.attempt) !== undefined) this.#deliveries.add(outcome)
    }
    await this.#past.sweep().catch(() => {})
    this.#taking = this.#takeWork()
    this.#loops = Promise.all([this.#taking, this.#renew()])
  }

  async #joinAtLast(signal: AbortSignal): Promise<void> {
    const backoff = new Backoff({ ...AWAY, random: this.#random })
    for (;;) {
      try {
        return await this.#join(signal)
      } catch (error) {
        signal.throwIfAborted()
        const trouble = troubleOf(error)
        if (trouble === 'stale' || trouble === 'broken' || isForbidden(error)) throw error
        this.#options.logger.warn({ err: error }, 'the server cannot be reached yet')
        await pause(backoff.next(), signal, this.#options.clock)
      }
    }
  }

  /** Also when the server has forgotten us. Those who ask while that is under way wait for the same answer. */
  #join(signal: AbortSignal): Promise<void> {
    this.#joining ??= this.#joinOnce(signal).finally(() => (this.#joining = undefined))
    return this.#joining
  }

  async #joinOnce(signal: AbortSignal): Promise<void> {
    const { nodeId, registration, labels, version } = this.#options
    const { lease_ms, max_part_bytes, outcomes } = await this.#call(
      CALL_MS,
      (within) =>
        this.#client.joinNode({
          params: { node_id: nodeId },
          body: { ...registration, labels: [...labels], version, boot_id: this.#bootId, holding: this.#holding() },
          signal: within,
        }),
      signal,
    )
    this.#leaseMs = lease_ms
    this.#partBytes = Math.min(PART_BYTES, max_part_bytes)
    this.#renewals.every(lease_ms / 3)
    this.#heed(outcomes)
  }

  #holding(): { session_id: string; attempt: number }[] {
    return this.#book.all().slice(0, MOST_LEASES).map(toWire)
  }

  // Taking work

  async #takeWork(): Promise<void> {
    const backoff = new Backoff({ ...AWAY, random: this.#random })
    while (!this.#isDraining && !this.#noMore.signal.aborted) {
      const room = await this.#countRoom()
      if (room <= 0) await this.#room.wait(LOOK_AGAIN_MS)
      else if (await this.#lease(room)) backoff.reset()
      else await pause(backoff.next(), this.#noMore.signal, this.#options.clock).catch(() => {})
    }
  }

  /**
   * So many that every stage is full and as many again wait as can be begun at once: then the next is there whenever a
   * place becomes free. None while results pile up, or the disk is full.
   */
  async #countRoom(): Promise<number> {
    const { init, ready, run } = this.#node.widths
    const most = 2 * init + ready + run
    if (this.#deliveries.size > 4 * most || (await this.#disk.check())) return 0
    const busy = this.#node.sessions.filter(({ status }) => UP_TO_RUNNING.has(status)).length
    return Math.min(1000, most - busy)
  }

  /** False when it should be tried again, later. */
  async #lease(room: number): Promise<boolean> {
    const { nodeId, affinity, logger } = this.#options
    try {
      const { orders, draining } = await this.#call(
        LONG_POLL_SECONDS * 1000 + CALL_MS,
        (signal) =>
          this.#client.leaseSessions({
            params: { node_id: nodeId },
            body: {
              free_slots: room,
              affinity: [...(affinity?.() ?? [])],
              holding: this.#holding(),
              boot_id: this.#bootId,
              wait: LONG_POLL_SECONDS,
            },
            signal,
          }),
        this.#noMore.signal,
      )
      for (const { order, lease_ms } of orders) this.#take(order, lease_ms)
      if (draining) this.#drainBecause('the server says so')
      return true
    } catch (error) {
      if (this.#noMore.signal.aborted) return true
      logger.warn({ err: error }, 'no work could be asked for')
      await this.#afterRefusal(error)
      return false
    }
  }

  #take(order: SessionOrder, leaseMs: number): void {
    const { sessionId, attempt } = order
    if (this.#book.get(sessionId, attempt) !== undefined) return
    // The server would not give us another attempt if it still waited for these.
    for (const held of this.#book.all()) {
      if (held.sessionId === sessionId) this.#drop(held, `attempt ${attempt} takes its place`)
    }
    this.#leaseMs = leaseMs
    const held = this.#book.add({ sessionId, attempt, isFinished: false, knownAt: this.#monotonic() })
    try {
      if (this.#isDraining) throw new RolloutError('config.invalid', 'The node takes no more sessions.')
      const session = this.#node.submit(order, () => this.#changed(held))
      held.session = session
      session.outcome.then(
        (outcome) => this.#finished(held, outcome),
        (error: unknown) => this.#broke(held, error),
      )
    } catch (error) {
      this.#options.logger.warn({ err: error, sessionId, attempt }, 'a session is given back at once')
      this.#book.delete(held)
      void this.#giveBack([held])
    }
  }

  // What becomes of what runs

  #changed(held: HeldLease): void {
    this.#room.ring()
    if (this.#book.has(held)) this.#renewals.changed(held)
  }

  #finished(held: HeldLease, outcome: SessionOutcome): void {
    this.#room.ring()
    if (!this.#book.has(held)) return this.#setAside(held)
    if (outcome.status === 'CANCELLED') {
      // Nobody told us to: the node itself is being stopped, and others may do it.
      this.#book.delete(held)
      void this.#giveBack([held])
      return this.#setAside(held)
    }
    held.isFinished = true
    this.#deliveries.add(outcome)
  }

  /** The disk could not hold how it ended. */
  #broke(held: HeldLease, error: unknown): void {
    const { sessionId, attempt } = held
    this.#options.logger.error({ err: error, sessionId, attempt }, 'a session was lost with its record')
    this.#room.ring()
    if (this.#book.delete(held)) void this.#giveBack([held])
    this.#setAside(held)
  }

  #delivered(outcome: SessionOutcome, end: DeliveryEnd): void {
    const held = this.#book.get(outcome.sessionId, outcome.attempt)
    if (held === undefined) return
    this.#book.delete(held)
    this.#room.ring()
    if (end === 'accepted') this.#counts.accepted += 1
    else this.#tellLost(held, end === 'lost' ? 'its result came too late' : 'its result cannot be delivered')
    if (end === 'undeliverable') void this.#giveBack([held])
    this.#setAside(held)
  }

  /** It is not ours any more: it is ended, and nothing of it is offered. */
  #drop(held: HeldLease, why: string): void {
    if (!this.#book.delete(held)) return
    this.#tellLost(held, why)
    if (held.isFinished) {
      this.#deliveries.remove(held)
      this.#setAside(held)
    } else held.session?.cancel(`The session is not this node’s any more: ${why}.`)
  }

  #tellLost({ sessionId, attempt }: HeldLease, why: string): void {
    this.#counts.lost += 1
    this.#options.logger.info({ sessionId, attempt, why }, 'a session is not ours any more')
  }

  #setAside({ sessionId, attempt }: HeldLease): void {
    this.#node
      .forget(sessionId, attempt)
      .then((path) => (path === undefined ? undefined : this.#past.add(path)))
      .catch((error: unknown) =>
        this.#options.logger.warn({ err: error, sessionId }, 'a session could not be set aside'),
      )
  }

  // Saying that it is still there

  async #renew(): Promise<void> {
    while (!this.#stop.signal.aborted) {
      const due = await this.#renewals.next()
      if (this.#stop.signal.aborted) return
      const asked = (due === 'all' ? this.#book.all() : due.filter((held) => this.#book.has(held))).slice(
        0,
        MOST_LEASES,
      )
      try {
        await this.#renewOnce(asked)
        this.#renewals.succeeded(due)
        await this.#giveBackOwed()
      } catch (error) {
        if (this.#stop.signal.aborted) return
        this.#options.logger.warn({ err: error }, 'leases could not be renewed')
        this.#renewals.failed(due)
        await this.#afterRefusal(error)
      }
      this.#dropLapsed()
    }
  }

  async #renewOnce(asked: readonly HeldLease[]): Promise<void> {
    const { outcomes, draining } = await this.#call(this.#leaseMs / 3, (signal) =>
      this.#client.renewLeases({
        params: { node_id: this.#options.nodeId },
        body: {
          renewals: asked.map((held) => this.#toRenewal(held)),
          metrics: this.#node.metrics,
          boot_id: this.#bootId,
        },
        signal,
      }),
    )
    this.#heed(outcomes)
    if (draining) this.#drainBecause('the server says so')
  }

  #toRenewal(held: HeldLease) {
    const status = held.session?.status
    const progress = held.isFinished ? undefined : this.#node.progressOf(held.sessionId)
    return {
      ...toWire(held),
      ...(status === undefined || isTerminal(status) ? {} : { status }),
      ...(progress === undefined ? {} : { progress }),
    }
  }

  #heed(outcomes: readonly Renewed[]): void {
    const now = this.#monotonic()
    for (const { session_id, attempt, kind } of outcomes) {
      const held = this.#book.get(session_id, attempt)
      if (held === undefined) continue
      switch (kind) {
        case 'held':
          held.knownAt = now
          break
        case 'accepted':
          this.#drop(held, 'the server has its result')
          break
        case 'cancelled':
          this.#drop(held, 'it was cancelled')
          break
        case 'lost':
          this.#drop(held, 'others have it, or nobody knows it')
          break
      }
    }
  }

  /** What has not begun, and surely is others' by now, need not begin. What runs goes on: it may still be ours. */
  #dropLapsed(): void {
    const lapsedBefore = this.#monotonic() - this.#leaseMs
    for (const held of this.#book.all()) {
      if (held.knownAt < lapsedBefore && held.session?.status === 'REGISTERED') {
        this.#drop(held, 'its lease ran out before it began')
        // Should the server have been away itself, nobody else has it yet.
        this.#owed.push(held)
      }
    }
  }

  async #isWanted(outcome: SessionOutcome, signal: AbortSignal): Promise<boolean> {
    const lease = { session_id: outcome.sessionId, attempt: outcome.attempt }
    const { outcomes } = await this.#call(
      CALL_MS,
      (within) =>
        this.#client.renewLeases({
          params: { node_id: this.#options.nodeId },
          body: { renewals: [lease], boot_id: this.#bootId },
          signal: within,
        }),
      signal,
    )
    return outcomes.some(({ session_id, attempt, kind }) => {
      return session_id === outcome.sessionId && attempt === outcome.attempt && kind === 'held'
    })
  }

  /** A server that does not know us any more is told again who we are; one that knows another by our name is left alone. */
  async #afterRefusal(error: unknown): Promise<void> {
    if (!(error instanceof RolloutError)) return
    const { status } = error.failure
    if (status === 409) this.#replaced(error)
    if (status !== 404) return
    try {
      await this.#join(this.#stop.signal)
    } catch (cause) {
      if (cause instanceof RolloutError && cause.failure.status === 409) this.#replaced(cause)
      else this.#options.logger.warn({ err: cause }, 'the server did not let us join again')
    }
  }

  #replaced(error: RolloutError): void {
    this.#options.logger.error({ err: error }, 'another process has joined by this name; this one stops')
    for (const held of this.#book.all()) if (!held.isFinished) this.#drop(held, 'another process has our name')
    this.#ended.reject(error)
    this.#end()
  }

  // Going

  /** Takes nothing more, finishes and delivers what it has, and leaves. What takes longer than the grace time is given back. */
  drain(): Promise<void> {
    const { drainGraceMs, clock } = this.#options
    if (!this.#isDraining) {
      const stop = drainGraceMs === undefined ? () => {} : clock.after(drainGraceMs, () => this.#hurry.abort())
      this.#draining = this.#drainPolitely().finally(stop)
    }
    return this.#draining!
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
    const params = { node_id: this.#options.nodeId }
    // Then whoever waits for work in our name is answered, and nothing is given to us that we would have to give back.
    const told = this.#call(PARTING_MS, (signal) => this.#client.drainNode({ params, signal }))
    await Promise.race([told.catch(() => {}), aborted(this.#hurry.signal)])
    await this.#finishAndLeave()
  }

  async #finishAndLeave(): Promise<void> {
    this.#room.ring()
    const stop = this.#options.clock.after(PARTING_MS, () => this.#noMore.abort())
    this.#hurry.signal.addEventListener('abort', () => this.#noMore.abort(), { once: true })
    if (this.#hurry.signal.aborted) this.#noMore.abort()
    await this.#book.untilEmpty(this.#hurry.signal)
    if (this.#book.size > 0) await this.#giveUpRest()
    // An answer that is still on its way may bring more; it is given back when it comes.
    await this.#taking
    stop()
    await this.#leave()
    this.#end()
  }

  async #giveUpRest(): Promise<void> {
    const rest = this.#book.all().filter(({ isFinished }) => !isFinished)
    for (const held of rest) {
      this.#book.delete(held)
      held.session?.cancel('The node stops, and has given the session back.')
    }
    await this.#giveBack(rest)
    await Promise.allSettled(rest.map(({ session }) => session?.outcome))
    const late = new AbortController()
    const stop = this.#options.clock.after(PARTING_MS, () => late.abort())
    await this.#deliveries.untilEmpty(late.signal)
    stop()
  }

  /** Those that the server could not be told of are given back when it is there again. */
  async #giveBack(leases: readonly HeldLease[]): Promise<void> {
    this.#counts.released += leases.length
    this.#owed.push(...leases)
    await this.#giveBackOwed()
  }

  async #giveBackOwed(): Promise<void> {
    const owed = this.#owed.splice(0, MOST_LEASES)
    if (owed.length === 0) return
    const body = { leases: owed.map(toWire), boot_id: this.#bootId }
    const params = { node_id: this.#options.nodeId }
    try {
      await this.#call(PARTING_MS, (signal) => this.#client.releaseLeases({ params, body, signal }))
    } catch (error) {
      this.#options.logger.warn({ err: error, leases: owed.length }, 'sessions could not be given back yet')
      if (troubleOf(error) === 'away') this.#owed.push(...owed)
    }
  }

  /** Not while results are left: who leaves gives up all it holds, and they are brought when it comes again. */
  async #leave(): Promise<void> {
    const { nodeId, logger } = this.#options
    if (this.#deliveries.size > 0) {
      logger.warn(
        { results: this.#deliveries.size },
        'results are left undelivered; start the node again to bring them',
      )
      return
    }
    const call = { params: { node_id: nodeId }, query: { boot_id: this.#bootId } }
    await this.#call(PARTING_MS, (signal) => this.#client.leaveNode({ ...call, signal })).catch((error) =>
      logger.warn({ err: error }, 'the server could not be told that the node has left'),
    )
  }

  #end(): void {
    this.#noMore.abort()
    this.#stop.abort(new Error('The worker has ended.'))
    this.#deliveries.stop()
    this.#room.ring()
    this.#renewals.stop()
    this.#past[Symbol.dispose]()
    this.#ended.resolve()
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.release()
    await this.#loops
  }

  /** A server that takes a call and never answers must not hold up a delivery for ever. */
  #patientClient(): OfferClient {
    const { beginUpload, getUpload, putPart, completeSession } = this.#client
    const limited =
      <I extends { signal?: AbortSignal }, A>(call: (input: I) => Promise<A>) =>
      (input: I): Promise<A> =>
        this.#call(UPLOAD_MS, (signal) => call({ ...input, signal }), input.signal)
    return {
      beginUpload: limited(beginUpload),
      getUpload: limited(getUpload),
      putPart: limited(putPart),
      completeSession: limited(completeSession),
    }
  }

  /** A call that is given up when it takes longer, or when it is not wanted any more. */
  async #call<T>(ms: number, ask: (signal: AbortSignal) => Promise<T>, signal = this.#stop.signal): Promise<T> {
    const late = new AbortController()
    const stop = this.#options.clock.after(ms, () => late.abort(tooLate(ms)))
    try {
      return await ask(AbortSignal.any([late.signal, signal]))
    } finally {
      stop()
    }
  }
}

function toWire({ sessionId, attempt }: Pick<HeldLease, 'sessionId' | 'attempt'>) {
  return { session_id: sessionId, attempt }
}

function tooLate(ms: number): RolloutError {
  return new RolloutError('server.unreachable', `The server did not answer within ${(ms / 1000).toFixed(1)} s.`)
}

async function aborted(signal: AbortSignal): Promise<void> {
  if (signal.aborted) return
  await new Promise((resolve) => signal.addEventListener('abort', resolve, { once: true }))
}
