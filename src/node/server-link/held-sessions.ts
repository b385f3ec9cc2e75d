import type { Logger } from 'pino'
import type { Clock } from '../../lib/async/clock.ts'
import { RolloutError } from '../../model/failure.ts'
import type { SessionOrder } from '../../model/session-order.ts'
import type { SessionOutcome } from '../../model/session-outcome.ts'
import { pastFolder, SessionFolder, sessionsFolder } from '../session/session-folder.ts'
import type { FailurePause } from './failure-pause.ts'
import { Deliveries, type DeliveryEnd } from './deliveries.ts'
import { LeaseTable, type HeldLease } from './lease-table.ts'
import { deliverResult } from './deliver-result.ts'
import { PastSessions } from './past-sessions.ts'
import type { RetentionPolicy, UploadPolicy } from './policies.ts'
import { classifyServerError } from './server-errors.ts'
import type { Renewed, ServerClient } from './server-client.ts'
import type { WorkerNode } from './worker-node.ts'

export interface HeldSessionsDeps {
  node: WorkerNode
  nodeId: string
  server: ServerClient
  uploads: UploadPolicy
  retention: RetentionPolicy
  clock: Clock
  monotonic: () => number
  random: () => number
  logger: Logger
  failurePause: FailurePause
  /** Called when the status of a session has changed. */
  onChanged(held: HeldLease): void
  /** Called when there may be capacity for more sessions. */
  onCapacity(): void
}

/** Size of one part of an upload; one part of each upload is in memory. */
const PART_BYTES = 4 * 1024 * 1024

/**
 * All attempts that a node has leased, until the server has stored their results or leased them to another node. Each
 * attempt ends in one of three ways: delivered, dropped because the server no longer waits for it, or released.
 */
export class HeldSessions implements Disposable {
  readonly #deps: HeldSessionsDeps
  readonly #leases = new LeaseTable()
  readonly #deliveries: Deliveries
  readonly #past: PastSessions
  /** Leases whose release request failed and is to be retried. */
  readonly #unreleased: HeldLease[] = []
  readonly counts = { accepted: 0, lost: 0, released: 0 }
  #partBytes = PART_BYTES

  constructor(deps: HeldSessionsDeps) {
    const { node, nodeId, server, uploads, clock, random, logger } = deps
    this.#deps = deps
    this.#past = new PastSessions({
      dir: pastFolder(node.dir),
      policy: deps.retention,
      clock,
      problem: (error) => logger.warn({ err: error }, 'files of past sessions could not be removed'),
    })
    this.#deliveries = new Deliveries({
      width: uploads.atOnce,
      deliver: (outcome, options) => {
        const folder = SessionFolder.of(sessionsFolder(node.dir), outcome.sessionId)
        const delivery = { nodeId, outcome, uploads, folder, partBytes: this.#partBytes, ...options }
        return deliverResult(server.uploads, delivery)
      },
      isLeased: (outcome, signal) => server.isLeased(outcome, signal),
      onEnd: (outcome, end) => this.#delivered(outcome, end),
      clock,
      random,
      logger,
    })
  }

  get held(): HeldLease[] {
    return this.#leases.all()
  }

  get undelivered(): number {
    return this.#deliveries.size
  }

  get isServerAway(): boolean {
    return this.#deliveries.isServerAway
  }

  has(held: HeldLease): boolean {
    return this.#leases.has(held)
  }

  limitParts(bytes: number): void {
    this.#partBytes = Math.min(PART_BYTES, bytes)
  }

  /** Adds a session that ended before this process started. `deliver` is called after the node has joined. */
  addFinished({ sessionId, attempt }: SessionOutcome): void {
    this.#leases.add({ sessionId, attempt, isFinished: true, confirmedAt: this.#deps.monotonic() })
  }

  deliver(outcome: SessionOutcome): void {
    if (this.#leases.get(outcome.sessionId, outcome.attempt) !== undefined) this.#deliveries.add(outcome)
  }

  sweep(): Promise<void> {
    return this.#past.sweep()
  }

  /** Starts a leased session, or releases it if the node accepts no more sessions. */
  start(order: SessionOrder, { isAccepted }: { isAccepted: boolean }): void {
    const { sessionId, attempt } = order
    if (this.#leases.get(sessionId, attempt) !== undefined) return
    // The server leases a new attempt only if it no longer waits for earlier attempts.
    for (const held of this.held) {
      if (held.sessionId === sessionId) this.drop(held, `attempt ${attempt} replaces it`)
    }
    const held = this.#leases.add({ sessionId, attempt, isFinished: false, confirmedAt: this.#deps.monotonic() })
    try {
      if (!isAccepted) throw new RolloutError('config.invalid', 'The node is draining.')
      const session = this.#deps.node.submit(order, () => this.#deps.onChanged(held))
      held.session = session
      session.outcome.then(
        (outcome) => this.#finished(held, outcome),
        (error: unknown) => this.#failedToStore(held, error),
      )
    } catch (error) {
      this.#deps.logger.warn({ err: error, sessionId, attempt }, 'a leased session did not start; releasing its lease')
      this.#leases.delete(held)
      void this.#release([held])
    }
  }

  #finished(held: HeldLease, outcome: SessionOutcome): void {
    this.#deps.onCapacity()
    if (!this.#leases.has(held)) return this.#archive(held)
    if (outcome.status === 'CANCELLED') {
      // The server did not cancel it: this node is stopping, and another node may run the session.
      this.#leases.delete(held)
      void this.#release([held])
      return this.#archive(held)
    }
    this.#deps.failurePause.note(outcome)
    held.isFinished = true
    this.#deliveries.add(outcome)
  }

  /** The outcome could not be written to disk. */
  #failedToStore(held: HeldLease, error: unknown): void {
    const { sessionId, attempt } = held
    this.#deps.logger.error({ err: error, sessionId, attempt }, 'the outcome of a session could not be written')
    this.#deps.failurePause.noteUnwritable()
    this.#deps.onCapacity()
    if (this.#leases.delete(held)) void this.#release([held])
    this.#archive(held)
  }

  #delivered(outcome: SessionOutcome, end: DeliveryEnd): void {
    const held = this.#leases.get(outcome.sessionId, outcome.attempt)
    if (held === undefined) return
    this.#leases.delete(held)
    this.#deps.onCapacity()
    if (end === 'accepted') this.counts.accepted += 1
    else this.#countLost(held, end === 'lost' ? 'its result came too late' : 'its result cannot be delivered')
    if (end === 'undeliverable') void this.#release([held])
    this.#archive(held)
  }

  /** Applies the server's answers about leases. Every attempt that is not `held` is dropped. */
  applyRenewals(outcomes: readonly Renewed[]): void {
    const now = this.#deps.monotonic()
    for (const { session_id, attempt, kind } of outcomes) {
      const held = this.#leases.get(session_id, attempt)
      if (held === undefined) continue
      switch (kind) {
        case 'held':
          held.confirmedAt = now
          break
        case 'accepted':
          this.drop(held, 'the server has its result')
          break
        case 'cancelled':
          this.drop(held, 'the session was cancelled')
          break
        case 'lost':
          this.drop(held, 'another node leased it, or the server does not know it')
          break
      }
    }
  }

  /** Drops sessions whose lease expired before they started. Running sessions go on: their lease may still be valid. */
  dropExpired(leaseMs: number): void {
    const expiredBefore = this.#deps.monotonic() - leaseMs
    for (const held of this.held) {
      if (held.confirmedAt >= expiredBefore || held.session?.status !== 'REGISTERED') continue
      this.drop(held, 'its lease expired before it started')
      // If the server was unreachable for all nodes, no other node has leased the session yet.
      this.#unreleased.push(held)
    }
  }

  /** Cancels an attempt whose lease the node lost. Its result is not delivered. */
  drop(held: HeldLease, why: string): void {
    if (!this.#leases.delete(held)) return
    this.#countLost(held, why)
    if (held.isFinished) {
      this.#deliveries.remove(held)
      this.#archive(held)
    } else held.session?.cancel(`This node no longer holds the lease of the session: ${why}.`)
  }

  #countLost({ sessionId, attempt }: HeldLease, why: string): void {
    this.counts.lost += 1
    this.#deps.logger.info({ sessionId, attempt, why }, 'the lease of a session was lost')
  }

  #archive({ sessionId, attempt }: HeldLease): void {
    this.#deps.node
      .archive(sessionId, attempt)
      .then((path) => (path === undefined ? undefined : this.#past.add(path)))
      .catch((error: unknown) => this.#deps.logger.warn({ err: error, sessionId }, 'a session could not be archived'))
  }

  /** Releases leases. A release request that fails is retried after the next renewal. */
  async #release(leases: readonly HeldLease[]): Promise<void> {
    this.counts.released += leases.length
    this.#unreleased.push(...leases)
    await this.retryReleases()
  }

  async retryReleases(): Promise<void> {
    const leases = this.#unreleased.splice(0)
    if (leases.length === 0) return
    try {
      await this.#deps.server.release(leases)
    } catch (error) {
      this.#deps.logger.warn({ err: error, leases: leases.length }, 'leases could not be released')
      if (classifyServerError(error) === 'unavailable') this.#unreleased.push(...leases)
    }
  }

  /** Cancels and releases all unfinished sessions; resolves when none of them runs. */
  async releaseUnfinished(): Promise<void> {
    const rest = this.held.filter(({ isFinished }) => !isFinished)
    for (const held of rest) {
      this.#leases.delete(held)
      held.session?.cancel('The node is stopping and has released the session.')
    }
    await this.#release(rest)
    await Promise.allSettled(rest.flatMap(({ session }) => session?.outcome ?? []))
  }

  untilEmpty(signal: AbortSignal): Promise<void> {
    return this.#leases.untilEmpty(signal)
  }

  /** Stops deliveries; undelivered results stay on disk. */
  [Symbol.dispose](): void {
    this.#deliveries.stop()
    this.#past[Symbol.dispose]()
  }
}
