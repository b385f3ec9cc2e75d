import type { Acceptance, LeaseResponse, LeasedOrder, LeaseRequest } from '../../../src/store/dispatch/port.ts'
import type { SessionStatus } from '../../../src/model/session.ts'
import type { VirtualClock } from '../clock.ts'
import type { Ledger } from '../ledger.ts'
import type { Scenario } from '../scenario.ts'
import { drawFate, type Fate, type SimTask, type Workload } from '../workload.ts'

/** Expected state of a session, without the database. */
export interface Known {
  task: SimTask
  sample: number
  /** Leased and not known to have ended. The highest leased attempt. */
  attempt: number
  holder: string | undefined
  isQueuedFirst: boolean
  isEnded: boolean
  /** Whether the session still has to run. */
  wants: boolean
  fate: Fate
  runBegunMs: number
  diedMs: number
}

interface KnownTask {
  task: SimTask
  sessions: string[]
  firstMs: number
  lastMs: number
  longestMs: number
  valid: number
  failed: number
  isOver: boolean
}

/**
 * Expected state of all sessions, derived from the answers of the dispatch, never from its tables. Throws as soon as an
 * answer cannot be right.
 */
export class ExpectedState {
  readonly #clock: VirtualClock
  readonly #scenario: Scenario
  readonly #ledger: Ledger
  readonly #workload: () => Workload
  readonly sessions = new Map<string, Known>()
  readonly tasks = new Map<string, KnownTask>()
  /** Waiting first attempts, by required labels and priority. */
  readonly #queued = new Map<string, { requires: readonly string[]; priority: number; count: number }>()
  /** Rejected results of nodes that had renewed all leases, while their task was running. */
  unjustRefusals = 0
  /** Number of waiting first attempts. */
  waiting = 0
  refused = 0

  constructor(clock: VirtualClock, scenario: Scenario, ledger: Ledger, workload: () => Workload) {
    this.#clock = clock
    this.#scenario = scenario
    this.#ledger = ledger
    this.#workload = workload
  }

  submitted(task: SimTask, rows: readonly { id: string; sample: number }[]): void {
    const known: KnownTask = {
      task,
      sessions: [],
      firstMs: 0,
      lastMs: 0,
      longestMs: 0,
      valid: 0,
      failed: 0,
      isOver: false,
    }
    this.tasks.set(task.id, known)
    if (rows.length !== task.samples) throw new Error(`${task.id} has ${rows.length} sessions, not ${task.samples}`)
    for (const { id, sample } of rows) {
      const fate = drawFate(this.#scenario, task.id, sample, 1)
      known.longestMs = Math.max(known.longestMs, fate.initMs + fate.runMs + fate.postrunMs)
      known.sessions.push(id)
      this.sessions.set(id, {
        task,
        sample,
        attempt: 0,
        holder: undefined,
        isQueuedFirst: true,
        isEnded: false,
        wants: true,
        fate,
        runBegunMs: 0,
        diedMs: 0,
      })
    }
    this.#ledger.sessions += rows.length
    this.#ledger.addWanting(rows.length)
    this.#ledger.addWaiting(task.trainer.name, rows.length)
    this.#queueOf(task).count += rows.length
    this.waiting += rows.length
  }

  leased(nodeId: string, { freeSlots, labels = [] }: LeaseRequest, { orders, node }: LeaseResponse): void {
    if (node !== 'member') throw new Error(`${nodeId} is ${node}`)
    if (orders.length > freeSlots)
      throw new Error(`${nodeId} requested ${freeSlots} sessions and leased ${orders.length}`)
    for (const { order } of orders) {
      const session = this.#find(order.sessionId)
      const { task } = session
      if (session.isEnded) throw new Error(`${order.sessionId} was leased after it had ended`)
      if (order.attempt <= session.attempt) {
        throw new Error(`attempt ${order.attempt} of ${order.sessionId} was leased to ${nodeId} and ${session.holder}`)
      }
      if (!isSubset(task.trainer.requires, labels)) throw new Error(`${nodeId} cannot serve ${order.sessionId}`)
      if (session.isQueuedFirst) {
        session.isQueuedFirst = false
        this.#queueOf(task).count -= 1
        this.waiting -= 1
        this.#ledger.addWaiting(task.trainer.name, -1)
        this.#ledger.queueAgesMs.push(this.#clock.elapsed - task.submittedMs)
      } else if (session.diedMs > 0) this.#ledger.rescuesMs.push(this.#clock.elapsed - session.diedMs)
      session.attempt = order.attempt
      this.#setHolder(session, nodeId)
      session.diedMs = 0
      session.fate = drawFate(this.#scenario, task.id, session.sample, order.attempt)
    }
    this.#assertPriority(labels, orders)
  }

  /** No session with a higher priority may wait in a queue that this node serves. */
  #assertPriority(labels: readonly string[], orders: readonly LeasedOrder[]): void {
    const least = Math.min(...orders.map(({ order }) => order.task.dispatch_priority))
    for (const { requires, priority, count } of this.#queued.values()) {
      if (count === 0 || priority <= least || !isSubset(requires, labels)) continue
      throw new Error(`priority ${least} was leased while ${count} sessions of priority ${priority} waited`)
    }
  }

  runBegan(sessionId: string): void {
    this.#find(sessionId).runBegunMs = this.#clock.elapsed
    this.#ledger.addBusy(1)
  }

  /** `isWhole`: the session ended by itself and need not run again. */
  runEnded(sessionId: string, attempt: number, isWhole: boolean): void {
    this.#ledger.addBusy(-1)
    const session = this.#find(sessionId)
    if (isWhole && session.attempt === attempt) this.#setWants(session, false)
  }

  nodeDied(sessionId: string, attempt: number, spentMs: number, isRunning: boolean): void {
    const session = this.#find(sessionId)
    if (isRunning) this.#ledger.addBusy(-1)
    this.#ledger.addWaste('node died', spentMs)
    if (session.isEnded || session.attempt !== attempt) return
    session.diedMs = this.#clock.elapsed
    this.#setHolder(session, undefined)
    this.#setWants(session, true)
  }

  accepted(
    { sessionId, attempt, status, runMs }: { sessionId: string; attempt: number; status: SessionStatus; runMs: number },
    acceptance: Acceptance,
    isFaithful: boolean,
  ): void {
    const session = this.#find(sessionId)
    const task = this.tasks.get(session.task.id)!
    if (acceptance.kind !== 'accepted') {
      this.refused += 1
      this.#ledger.addWaste('refused', runMs)
      if (!task.isOver && isFaithful) this.unjustRefusals += 1
      return
    }
    if (session.isEnded) throw new Error(`${sessionId} ended twice`)
    if (attempt !== session.attempt)
      throw new Error(`attempt ${attempt} of ${sessionId} was taken, ${session.attempt} is newer`)
    this.#setHolder(session, undefined)
    if (acceptance.isRefilled) {
      this.#ledger.refills += 1
      this.#ledger.addWaste('failed', runMs)
      this.#setWants(session, true)
    } else {
      const isValid = status === 'COMPLETED' || status === 'TIMEOUT'
      if (isValid) task.valid += 1
      else task.failed += 1
      this.#ledger.addUseful(session.task.trainer.name, runMs)
      this.#end(session)
      task.firstMs ||= this.#clock.elapsed
      task.lastMs = this.#clock.elapsed
      this.#workload().sessionEnded(session.task)
    }
    if (acceptance.taskStatus !== 'running') this.taskEnded(session.task.id)
  }

  /** Ends a task as the server reported; its remaining sessions are cancelled. */
  taskEnded(taskId: string): void {
    const known = this.tasks.get(taskId)!
    if (known.isOver) throw new Error(`${taskId} ended twice`)
    known.isOver = true
    let cancelled = 0
    for (const id of known.sessions) {
      const session = this.#find(id)
      if (session.isEnded) continue
      cancelled += 1
      const ran = session.runBegunMs > 0 && session.holder !== undefined ? this.#clock.elapsed - session.runBegunMs : 0
      if (session.wants) this.#ledger.sparedMs += Math.max(0, session.fate.runMs - ran)
      this.#end(session)
    }
    const { task, firstMs, lastMs, longestMs, valid, failed } = known
    this.#ledger.taskEnded(task, { firstMs, lastMs, longestMs, valid, failed, cancelled })
    this.#workload().taskEnded(taskId)
  }

  fateOf(sessionId: string): Fate {
    return this.#find(sessionId).fate
  }

  #end(session: Known): void {
    session.isEnded = true
    this.#setHolder(session, undefined)
    this.#setWants(session, false)
    if (!session.isQueuedFirst) return
    session.isQueuedFirst = false
    this.#queueOf(session.task).count -= 1
    this.waiting -= 1
    this.#ledger.addWaiting(session.task.trainer.name, -1)
  }

  #setHolder(session: Known, holder: string | undefined): void {
    const change = (holder === undefined ? 0 : 1) - (session.holder === undefined ? 0 : 1)
    if (change !== 0) this.#ledger.addHeld(session.task.trainer.name, change)
    session.holder = holder
  }

  #setWants(session: Known, wants: boolean): void {
    if (session.wants === wants) return
    session.wants = wants
    this.#ledger.addWanting(wants ? 1 : -1)
  }

  #find(sessionId: string): Known {
    const session = this.sessions.get(sessionId)
    if (session === undefined) throw new Error(`unknown session ${sessionId}`)
    return session
  }

  #queueOf({ trainer: { requires, priority } }: SimTask): { count: number } {
    const key = `${requires.join()} ${priority}`
    const queue = this.#queued.get(key) ?? { requires, priority, count: 0 }
    this.#queued.set(key, queue)
    return queue
  }
}

function isSubset(some: readonly string[], all: readonly string[]): boolean {
  return some.every((each) => all.includes(each))
}
