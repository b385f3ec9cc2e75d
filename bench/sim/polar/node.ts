import { countCapacity, type LeaseCapacity } from '../../../src/node/server-link/lease-capacity.ts'
import type { MonotonicClock } from '../../../src/lib/async/clock.ts'
import type { SessionOrder } from '../../../src/model/session-order.ts'
import type { SessionOutcome } from '../../../src/model/session-outcome.ts'
import { isTerminal, type SessionStatus } from '../../../src/model/session.ts'
import { runSession, type SessionEnd } from '../../../src/node/session/run-session.ts'
import type { QueuedLeaseRequest } from '../../../src/server/notify/lease-queue.ts'
import { Stages } from '../../../src/node/session/stages.ts'
import type { Lease, LeasedOrder } from '../../../src/store/dispatch/port.ts'
import type { VirtualClock } from '../clock.ts'
import type { FleetNode } from '../fleet.ts'
import type { Ledger } from '../ledger.ts'
import { createRandom, type Random } from '../random.ts'
import type { Scenario } from '../scenario.ts'
import type { ExpectedState } from './expected-state.ts'
import { createWork } from './work.ts'

/** The server's interface for nodes: a call returns undefined while the server is down. */
export interface ServerApi {
  join(node: FleetNode, bootId: string): Promise<true | undefined>
  /** `gone` is aborted when the node stops waiting. */
  lease(node: FleetNode, room: QueuedLeaseRequest, gone: AbortSignal): Promise<LeasedOrder[] | undefined>
  /** Returns the leases that the node still holds. */
  renew(
    node: FleetNode,
    bootId: string,
    held: readonly (Lease & { status: SessionStatus })[],
  ): Promise<Lease[] | undefined>
  complete(outcome: SessionOutcome, more: { runMs: number; isFaithful: boolean }): Promise<true | undefined>
}

export interface NodeDeps {
  scenario: Scenario
  clock: VirtualClock
  server: ServerApi
  expected: ExpectedState
  ledger: Ledger
}

interface Held {
  order: SessionOrder
  status: SessionStatus
  /** Time of the lease, and start of the run; 0: not yet. */
  takenMs: number
  runBegunMs: number
  runMs: number
  hasRun: boolean
  cancel: AbortController
}

const FIRST_RETRY_MS = 500
const LONGEST_RETRY_MS = 15_000
const EVALUATE_MS = 3_600_000

/**
 * One process of a node: real stages and real session code, whose steps only take virtual time. A killed process stops at
 * once and sends nothing.
 */
export class SimNode {
  readonly #node: FleetNode
  readonly #deps: NodeDeps
  readonly #bootId: string
  readonly #stages: Stages
  readonly #random: Random
  readonly #held = new Map<string, Held>()
  readonly #clock: MonotonicClock & { sleep(ms: number): Promise<void> }
  readonly #gone = new AbortController()
  #isAsking = false
  #onTheWay = 0
  /** A renewal failed: other nodes may have leased the sessions of this node. */
  #missedRenewals = 0

  constructor(node: FleetNode, boot: number, deps: NodeDeps) {
    this.#node = node
    this.#deps = deps
    this.#bootId = `${node.id}/${boot}`
    this.#stages = new Stages(deps.scenario.widths)
    this.#random = createRandom(deps.scenario.seed, this.#bootId)
    this.#clock = this.#ownClock()
  }

  start(): void {
    this.#deps.ledger.addVacant(this.#deps.scenario.widths.run)
    this.#live().catch(this.#deps.clock.fail)
  }

  kill(): void {
    this.#gone.abort()
    const { ledger, scenario } = this.#deps
    ledger.moveHeld(this.#onTheWay, 0, scenario.widths.run)
    ledger.addVacant(-scenario.widths.run)
    const now = this.#deps.clock.elapsed
    for (const { order, status, takenMs } of this.#held.values()) {
      this.#deps.expected.nodeDied(order.sessionId, order.attempt, now - takenMs, status === 'RUNNING')
    }
  }

  /** A dead process never continues. */
  #ownClock(): MonotonicClock & { sleep(ms: number): Promise<void> } {
    const { clock } = this.#deps
    const after = (ms: number, call: () => void): (() => void) => {
      return clock.after(ms, () => {
        if (!this.#gone.signal.aborted) call()
      })
    }
    const now = (): number => clock.now()
    return { now, monotonic: now, after, sleep: (ms) => new Promise((resolve) => void after(ms, resolve)) }
  }

  async #live(): Promise<void> {
    await this.#ask(() => this.#deps.server.join(this.#node, this.#bootId))
    // Nodes that started together must not renew together.
    this.#renewAfter((this.#deps.scenario.leaseMs / 3) * this.#random())
    await this.#takeWork()
  }

  /** Sends one lease request at a time while the node has capacity. */
  async #takeWork(): Promise<void> {
    if (this.#isAsking) return
    this.#isAsking = true
    for (let room = this.#room(); room.slots > 0; room = this.#room()) {
      const ahead = this.#deps.scenario.tellsAhead ? room.ahead : 0
      const asked = { freeSlots: room.slots, ahead, labels: this.#node.labels, bootId: this.#bootId }
      const orders = await this.#ask(() => this.#deps.server.lease(this.#node, asked, this.#gone.signal))
      for (const { order } of orders) this.#begin(order)
    }
    this.#isAsking = false
  }

  #room(): LeaseCapacity {
    const { widths, ahead } = this.#deps.scenario
    return countCapacity({ run: widths.run, init: ahead, ready: 0 }, this.#onTheWay)
  }

  /** Sessions of the node that run or still have to run. */
  #addOnTheWay(count: number): void {
    if (this.#gone.signal.aborted) return
    this.#deps.ledger.moveHeld(this.#onTheWay, this.#onTheWay + count, this.#deps.scenario.widths.run)
    this.#onTheWay += count
  }

  #begin(order: SessionOrder): void {
    const held: Held = {
      order,
      status: 'REGISTERED',
      takenMs: this.#deps.clock.elapsed,
      runBegunMs: 0,
      runMs: 0,
      hasRun: false,
      cancel: new AbortController(),
    }
    this.#held.set(order.sessionId, held)
    this.#addOnTheWay(1)
    this.#work(held).catch(this.#deps.clock.fail)
  }

  async #work(held: Held): Promise<void> {
    const { expected, scenario } = this.#deps
    const { order, cancel } = held
    const work = createWork(expected.fateOf(order.sessionId), this.#clock)
    const limits = {
      initMs: Infinity,
      agentMs: scenario.agentTimeoutMs,
      evaluateMs: EVALUATE_MS,
      sessionMs: Infinity,
    }
    const deps = {
      stages: this.#stages,
      clock: this.#clock,
      onTransition: ({ to }: { to: SessionStatus }) => this.#note(held, to),
      onError: this.#deps.clock.fail,
    }
    const end = await runSession({ priority: order.task.dispatch_priority, limits }, work, deps, cancel.signal)
    if (end.status !== 'CANCELLED') await this.#deliver(held, end)
    this.#held.delete(order.sessionId)
    await this.#takeWork()
  }

  #note(held: Held, to: SessionStatus): Promise<void> {
    const { expected, clock } = this.#deps
    const { sessionId, attempt } = held.order
    if (to === 'RUNNING') {
      held.runBegunMs = clock.elapsed
      expected.runBegan(sessionId)
    }
    if (held.status === 'RUNNING') {
      held.runMs = clock.elapsed - held.runBegunMs
      const { failure } = expected.fateOf(sessionId)
      expected.runEnded(sessionId, attempt, failure === undefined && !held.cancel.signal.aborted)
    }
    held.status = to
    if (!held.hasRun && (to === 'POST_RUN' || isTerminal(to))) {
      held.hasRun = true
      this.#addOnTheWay(-1)
      this.#takeWork().catch(clock.fail)
    }
    return Promise.resolve()
  }

  async #deliver(held: Held, end: SessionEnd<null>): Promise<void> {
    const { order, runMs, cancel } = held
    const trained = end.failure === undefined && this.#deps.expected.fateOf(order.sessionId).isUsable ? 1 : 0
    const outcome: SessionOutcome = {
      schemaVersion: 1,
      sessionId: order.sessionId,
      taskId: order.task.task_id,
      attempt: order.attempt,
      nodeId: this.#node.id,
      status: end.status,
      ...(end.failure !== undefined && { failure: end.failure }),
      ...(end.grade !== undefined && { grade: end.grade }),
      counts: {
        builder: 'per_request',
        turns: 1,
        calls: 1,
        rows: 1,
        trainedCalls: trained,
        tokens: { sampled: 1, trained, excluded: 0 },
      },
      timing: end.timing,
      artifacts: [],
      endedAt: this.#clock.now(),
    }
    // The session was cancelled before its delivery: its result is not needed.
    await this.#ask(async () => {
      if (cancel.signal.aborted) return true
      return this.#deps.server.complete(outcome, { runMs, isFaithful: this.#missedRenewals === 0 })
    })
  }

  #renewAfter(ms: number): void {
    this.#clock.after(ms, () => {
      this.#renew()
        .catch(this.#deps.clock.fail)
        .finally(() => this.#renewAfter(this.#deps.scenario.leaseMs / 3))
    })
  }

  async #renew(): Promise<void> {
    const asked = [...this.#held.values()].map(({ order, status }) => {
      return { sessionId: order.sessionId, attempt: order.attempt, status }
    })
    const kept = await this.#deps.server.renew(this.#node, this.#bootId, asked)
    if (this.#gone.signal.aborted) return
    if (kept === undefined) return void (this.#missedRenewals += 1)
    const keys = new Set(kept.map(({ sessionId }) => sessionId))
    for (const { sessionId, attempt } of asked) {
      const held = this.#held.get(sessionId)
      if (keys.has(sessionId) || held?.order.attempt !== attempt) continue
      held.cancel.abort(new Error('Cancelled by the server.'))
    }
  }

  /** Resolves when the server answers; never for a dead node. */
  async #ask<T>(call: () => Promise<T | undefined>): Promise<T> {
    for (let waitMs = FIRST_RETRY_MS; ; waitMs = Math.min(2 * waitMs, LONGEST_RETRY_MS)) {
      const answer = await call()
      if (this.#gone.signal.aborted) return new Promise(() => {})
      if (answer !== undefined) return answer
      await this.#clock.sleep(waitMs * (0.5 + this.#random() / 2))
    }
  }
}
