import type { Logger } from 'pino'
import type { Clock } from '../../lib/async/clock.ts'
import { RolloutError } from '../../model/failure.ts'
import type { SessionOrder } from '../../model/session-order.ts'
import type { SessionOutcome } from '../../model/session-outcome.ts'
import { pastFolder, SessionFolder, sessionsFolder } from '../session/session-folder.ts'
import type { Brake } from './failure-pause.ts'
import { Deliveries, type DeliveryEnd } from './deliveries.ts'
import { LeaseBook, type HeldLease } from './lease-book.ts'
import { offer } from './offer.ts'
import { PastSessions } from './past-sessions.ts'
import type { RetentionPolicy, UploadPolicy } from './policies.ts'
import { troubleOf } from './server-errors.ts'
import type { Renewed, ServerLine } from './server-client.ts'
import type { WorkerNode } from './worker-node.ts'

export interface HandsDeps {
  node: WorkerNode
  nodeId: string
  line: ServerLine
  uploads: UploadPolicy
  retention: RetentionPolicy
  clock: Clock
  monotonic: () => number
  random: () => number
  logger: Logger
  brake: Brake
  /** A session is not where it was. */
  onChanged(held: HeldLease): void
  /** There may be room for more. */
  onRoom(): void
}

/** Of one part of a result; so much of it is in memory. */
const PART_BYTES = 4 * 1024 * 1024

/**
 * All attempts that a node has in its hands, from the moment it is given them until the server has their results, or they
 * are others'. None is ever lost sight of: each is delivered, dropped because the server said so, or given back.
 */
export class Hands implements Disposable {
  readonly #deps: HandsDeps
  readonly #book = new LeaseBook()
  readonly #deliveries: Deliveries
  readonly #past: PastSessions
  /** To be given back to a server that could not be told so yet. */
  readonly #owed: HeldLease[] = []
  readonly counts = { accepted: 0, lost: 0, released: 0 }
  #partBytes = PART_BYTES

  constructor(deps: HandsDeps) {
    const { node, nodeId, line, uploads, clock, random, logger } = deps
    this.#deps = deps
    this.#past = new PastSessions({
      dir: pastFolder(node.dir),
      policy: deps.retention,
      clock,
      problem: (error) => logger.warn({ err: error }, 'what is left of past sessions could not be removed'),
    })
    this.#deliveries = new Deliveries({
      width: uploads.atOnce,
      offer: (outcome, how) => {
        const folder = SessionFolder.of(sessionsFolder(node.dir), outcome.sessionId)
        return offer(line.uploads, { nodeId, outcome, uploads, folder, partBytes: this.#partBytes, ...how })
      },
      isWanted: (outcome, signal) => line.isWanted(outcome, signal),
      onEnd: (outcome, end) => this.#delivered(outcome, end),
      clock,
      random,
      logger,
    })
  }

  get held(): HeldLease[] {
    return this.#book.all()
  }

  get undelivered(): number {
    return this.#deliveries.size
  }

  get isServerAway(): boolean {
    return this.#deliveries.isServerAway
  }

  has(held: HeldLease): boolean {
    return this.#book.has(held)
  }

  limitParts(bytes: number): void {
    this.#partBytes = Math.min(PART_BYTES, bytes)
  }

  /** One that had ended before this process began; it is offered when the server has heard of it. */
  remember({ sessionId, attempt }: SessionOutcome): void {
    this.#book.add({ sessionId, attempt, isFinished: true, knownAt: this.#deps.monotonic() })
  }

  deliver(outcome: SessionOutcome): void {
    if (this.#book.get(outcome.sessionId, outcome.attempt) !== undefined) this.#deliveries.add(outcome)
  }

  sweep(): Promise<void> {
    return this.#past.sweep()
  }

  /** An order of the server's. One that is not wanted any more is given back. */
  take(order: SessionOrder, { isWanted }: { isWanted: boolean }): void {
    const { sessionId, attempt } = order
    if (this.#book.get(sessionId, attempt) !== undefined) return
    // The server would not give us another attempt if it still waited for these.
    for (const held of this.held) {
      if (held.sessionId === sessionId) this.drop(held, `attempt ${attempt} takes its place`)
    }
    const held = this.#book.add({ sessionId, attempt, isFinished: false, knownAt: this.#deps.monotonic() })
    try {
      if (!isWanted) throw new RolloutError('config.invalid', 'The node takes no more sessions.')
      const session = this.#deps.node.submit(order, () => this.#deps.onChanged(held))
      held.session = session
      session.outcome.then(
        (outcome) => this.#finished(held, outcome),
        (error: unknown) => this.#broke(held, error),
      )
    } catch (error) {
      this.#deps.logger.warn({ err: error, sessionId, attempt }, 'a session is given back at once')
      this.#book.delete(held)
      void this.giveBack([held])
    }
  }

  #finished(held: HeldLease, outcome: SessionOutcome): void {
    this.#deps.onRoom()
    if (!this.#book.has(held)) return this.#setAside(held)
    if (outcome.status === 'CANCELLED') {
      // Nobody told us to: the node itself is being stopped, and others may do it.
      this.#book.delete(held)
      void this.giveBack([held])
      return this.#setAside(held)
    }
    this.#deps.brake.note(outcome)
    held.isFinished = true
    this.#deliveries.add(outcome)
  }

  /** The disk could not hold how it ended. */
  #broke(held: HeldLease, error: unknown): void {
    const { sessionId, attempt } = held
    this.#deps.logger.error({ err: error, sessionId, attempt }, 'a session was lost with its record')
    this.#deps.brake.noteBroken()
    this.#deps.onRoom()
    if (this.#book.delete(held)) void this.giveBack([held])
    this.#setAside(held)
  }

  #delivered(outcome: SessionOutcome, end: DeliveryEnd): void {
    const held = this.#book.get(outcome.sessionId, outcome.attempt)
    if (held === undefined) return
    this.#book.delete(held)
    this.#deps.onRoom()
    if (end === 'accepted') this.counts.accepted += 1
    else this.#tellLost(held, end === 'lost' ? 'its result came too late' : 'its result cannot be delivered')
    if (end === 'undeliverable') void this.giveBack([held])
    this.#setAside(held)
  }

  /** What the server says of what we hold. All but `held` is to be stopped. */
  heed(outcomes: readonly Renewed[]): void {
    const now = this.#deps.monotonic()
    for (const { session_id, attempt, kind } of outcomes) {
      const held = this.#book.get(session_id, attempt)
      if (held === undefined) continue
      switch (kind) {
        case 'held':
          held.knownAt = now
          break
        case 'accepted':
          this.drop(held, 'the server has its result')
          break
        case 'cancelled':
          this.drop(held, 'it was cancelled')
          break
        case 'lost':
          this.drop(held, 'others have it, or nobody knows it')
          break
      }
    }
  }

  /** What has not begun, and surely is others' by now, need not begin. What runs goes on: it may still be ours. */
  dropLapsed(leaseMs: number): void {
    const lapsedBefore = this.#deps.monotonic() - leaseMs
    for (const held of this.held) {
      if (held.knownAt >= lapsedBefore || held.session?.status !== 'REGISTERED') continue
      this.drop(held, 'its lease ran out before it began')
      // Should the server have been away itself, nobody else has it yet.
      this.#owed.push(held)
    }
  }

  /** It is not ours any more: it is ended, and nothing of it is offered. */
  drop(held: HeldLease, why: string): void {
    if (!this.#book.delete(held)) return
    this.#tellLost(held, why)
    if (held.isFinished) {
      this.#deliveries.remove(held)
      this.#setAside(held)
    } else held.session?.cancel(`The session is not this node’s any more: ${why}.`)
  }

  #tellLost({ sessionId, attempt }: HeldLease, why: string): void {
    this.counts.lost += 1
    this.#deps.logger.info({ sessionId, attempt, why }, 'a session is not ours any more')
  }

  #setAside({ sessionId, attempt }: HeldLease): void {
    this.#deps.node
      .forget(sessionId, attempt)
      .then((path) => (path === undefined ? undefined : this.#past.add(path)))
      .catch((error: unknown) => this.#deps.logger.warn({ err: error, sessionId }, 'a session could not be set aside'))
  }

  /** Those that the server could not be told of are given back when it is there again. */
  async giveBack(leases: readonly HeldLease[]): Promise<void> {
    this.counts.released += leases.length
    this.#owed.push(...leases)
    await this.giveBackOwed()
  }

  async giveBackOwed(): Promise<void> {
    const owed = this.#owed.splice(0)
    if (owed.length === 0) return
    try {
      await this.#deps.line.release(owed)
    } catch (error) {
      this.#deps.logger.warn({ err: error, leases: owed.length }, 'sessions could not be given back yet')
      if (troubleOf(error) === 'away') this.#owed.push(...owed)
    }
  }

  /** Ends and gives back all that is not finished; resolves when nothing of it runs any more. */
  async giveUpUnfinished(): Promise<void> {
    const rest = this.held.filter(({ isFinished }) => !isFinished)
    for (const held of rest) {
      this.#book.delete(held)
      held.session?.cancel('The node stops, and has given the session back.')
    }
    await this.giveBack(rest)
    await Promise.allSettled(rest.flatMap(({ session }) => session?.outcome ?? []))
  }

  /** Resolves once nothing is held, or the signal is aborted. */
  untilEmpty(signal: AbortSignal): Promise<void> {
    return this.#book.untilEmpty(signal)
  }

  /** Ends deliveries; what is left of them stays on disk. */
  [Symbol.dispose](): void {
    this.#deliveries.stop()
    this.#past[Symbol.dispose]()
  }
}
