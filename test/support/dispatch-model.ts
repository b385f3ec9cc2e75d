import { failureClasses, type FailureCode } from '../../src/model/failure.ts'
import type {
  JoinResponse,
  Acceptance,
  DeleteOutcome,
  EnqueueOutcome,
  Lease,
  RenewalOutcome,
  RetriedStatus,
  SessionRetry,
  TaskUpdate,
  TaskRetry,
  UpdateOutcome,
} from '../../src/store/dispatch/port.ts'

/** Ending of a session: completed, timed out, or failed. */
export type ModelEnding = 'well' | 'out-of-time' | FailureCode

interface ModelSession {
  id: string
  task: ModelTask
  state: 'queued' | 'leased' | 'ended'
  status: string
  verdict?: 'valid' | 'failed' | 'cancelled'
  isUsable: boolean
  attempt: number
  failures: number
  node?: string
  /** Whether the node has renewed the lease. */
  isKnownThere: boolean
  /** Accepted and cancelled attempts. */
  accepted: Set<number>
  cancelled: Set<number>
}

export interface NewTask {
  id: string
  owner: string
  samples: number
  priority: number
  earlyStop?: number
  maxFailures: number
}

interface ModelTask extends Omit<NewTask, 'samples'> {
  status: 'running' | 'completed' | 'failed' | 'cancelled'
  /** Number of ended sessions, including retried ones. */
  endings: number
  sessions: ModelSession[]
}

/** Reference model of dispatch: one thread, a list, no database. The order of leases is left open. */
export class DispatchModel {
  readonly tasks = new Map<string, ModelTask>()
  readonly sessions = new Map<string, ModelSession>()
  readonly tombstones = new Set<string>()
  /** Deleted tasks whose sessions may still exist. */
  readonly deleted = new Set<string>()
  readonly quotas = new Map<string, { maxQueued: number | null; maxRunning: number | null }>()
  readonly boots = new Map<string, string>()

  /** `begin` creates the sessions when their ids are known. */
  submit({ id, owner, samples }: NewTask): EnqueueOutcome['kind'] {
    if (this.tombstones.has(id)) return 'cancelled'
    if (this.deleted.has(id)) return 'deleted'
    return this.#hasRoom(owner, samples) ? 'created' : 'over-quota'
  }

  begin({ samples: _, ...task }: NewTask, sessionIds: readonly string[]): void {
    const made: ModelTask = { ...task, status: 'running', endings: 0, sessions: [] }
    this.tasks.set(task.id, made)
    for (const id of sessionIds) {
      const session: ModelSession = {
        id,
        task: made,
        state: 'queued',
        status: 'REGISTERED',
        isUsable: false,
        attempt: 1,
        failures: 0,
        isKnownThere: false,
        accepted: new Set(),
        cancelled: new Set(),
      }
      made.sessions.push(session)
      this.sessions.set(id, session)
    }
  }

  /** Applies leases after checking them: as many as available, and none before a session of higher priority. */
  take(node: string, freeSlots: number, leases: readonly Lease[]): void {
    const queued = [...this.sessions.values()].filter(({ state }) => state === 'queued')
    const byOwner = Map.groupBy(queued, ({ task }) => task.owner)
    const roomOf = (owner: string) => (this.quotas.get(owner)?.maxRunning ?? Infinity) - this.#count(owner, 'leased')
    let most = 0
    for (const [owner, own] of byOwner) most += Math.max(0, Math.min(roomOf(owner), own.length))
    if (leases.length !== Math.min(freeSlots, most)) throw new Error(`${leases.length} of ${most}`)
    for (const { sessionId, attempt } of leases) {
      const session = this.sessions.get(sessionId)
      if (session?.state !== 'queued' || session.attempt !== attempt) throw new Error(`${sessionId} was not to be had`)
      Object.assign(session, { state: 'leased', node, isKnownThere: false })
    }
    const worst = Math.min(...leases.map(({ sessionId }) => this.sessions.get(sessionId)!.task.priority))
    for (const [owner, own] of byOwner) {
      // A quota may have been reduced below the number of running sessions; then nothing may be leased.
      if (roomOf(owner) < 0 && own.some(({ state }) => state === 'leased')) throw new Error(`too many of ${owner}`)
      const left = Math.max(...own.filter(({ state }) => state === 'queued').map(({ task }) => task.priority))
      const taken = Math.min(...own.filter(({ state }) => state === 'leased').map(({ task }) => task.priority))
      if (left > taken || (roomOf(owner) > 0 && left > worst)) throw new Error('passed over')
    }
  }

  accept(node: string, { sessionId, attempt }: Lease, ending: ModelEnding): Acceptance {
    const session = this.sessions.get(sessionId)
    if (session === undefined) return { kind: 'refused', reason: 'unknown-session' }
    if (session.state !== 'leased' || session.attempt !== attempt || session.node !== node) {
      if (session.accepted.has(attempt)) return { kind: 'duplicate' }
      return { kind: 'refused', reason: session.cancelled.has(attempt) ? 'cancelled' : 'stale' }
    }
    session.accepted.add(attempt)
    return { kind: 'accepted', isRefilled: this.#end(session, ending), taskStatus: session.task.status }
  }

  renew(node: string, lease: Lease): RenewalOutcome {
    const session = this.sessions.get(lease.sessionId)
    if (session?.attempt === lease.attempt && session.state === 'leased' && session.node === node) {
      session.isKnownThere = true
      return { ...lease, kind: 'held' }
    }
    if (session?.accepted.has(lease.attempt)) return { ...lease, kind: 'accepted' }
    return { ...lease, kind: session?.cancelled.has(lease.attempt) ? 'cancelled' : 'lost' }
  }

  release(node: string, leases: readonly Lease[]): Lease[] {
    return leases.filter(({ sessionId, attempt }) => {
      const session = this.sessions.get(sessionId)
      if (session?.state !== 'leased' || session.attempt !== attempt || session.node !== node) return false
      queueAgain(session)
      return true
    })
  }

  /** Releases leases that the node never renewed and does not list. */
  takeBack(node: string, holding: readonly Lease[]): void {
    for (const session of this.#heldBy(node)) {
      if (!session.isKnownThere && !isNamed(session, holding)) queueAgain(session)
    }
  }

  join(node: string, bootId: string, replaces: string | undefined, holding: readonly Lease[]): JoinResponse {
    const before = this.boots.get(node)
    if (before !== undefined && before !== bootId && before !== replaces) return { kind: 'taken', bootId: before }
    const lost = before === bootId ? 0 : this.loseNode(node, holding)
    this.boots.set(node, bootId)
    return { kind: 'joined', outcomes: holding.map((lease) => this.renew(node, lease)), lost }
  }

  loseNode(node: string, holding: readonly Lease[] = []): number {
    const lost = this.#heldBy(node).filter((session) => !isNamed(session, holding))
    for (const session of lost) this.#end(session, 'session.node-lost')
    return lost.length
  }

  cancelTask(id: string, registerIfMissing: boolean): string | undefined {
    if (this.deleted.has(id)) return registerIfMissing ? 'cancelled' : undefined
    const task = this.tasks.get(id)
    if (task === undefined && registerIfMissing) this.tombstones.add(id)
    if (this.tombstones.has(id)) return 'cancelled'
    if (task?.status === 'running') {
      this.#closeRest(task)
      task.status = 'cancelled'
    }
    return task?.status
  }

  deleteTask(id: string): DeleteOutcome['kind'] {
    const task = this.tasks.get(id)
    if (task === undefined) return 'unknown-task'
    if (task.status === 'running') return 'running'
    this.tasks.delete(id)
    this.deleted.add(id)
    return 'deleted'
  }

  /** Removes everything of deleted tasks except their ids. */
  clearDeleted(): void {
    for (const { id, task } of this.sessions.values()) if (this.deleted.has(task.id)) this.sessions.delete(id)
  }

  cancelSession(id: string): boolean {
    const session = this.sessions.get(id)
    if (session === undefined || session.state === 'ended') return false
    cancel(session)
    const { task } = session
    if (task.sessions.every(({ state }) => state === 'ended')) {
      const hasFailed = task.sessions.some(({ verdict }) => verdict === 'failed')
      task.status = countValid(task) > 0 ? 'completed' : hasFailed ? 'failed' : 'cancelled'
    }
    return true
  }

  update(id: string, { priority, earlyStop }: TaskUpdate): UpdateOutcome {
    const task = this.tasks.get(id)
    if (task === undefined) return 'unknown-task'
    if (task.status !== 'running') return 'over'
    if (priority !== undefined) task.priority = priority
    if (earlyStop !== undefined) task.earlyStop = earlyStop ?? undefined
    if (task.earlyStop !== undefined && countUsable(task) >= task.earlyStop) {
      this.#closeRest(task)
      task.status = countValid(task) > 0 ? 'completed' : 'failed'
    }
    return 'updated'
  }

  retryTask(id: string, statuses: readonly RetriedStatus[]): TaskRetry {
    const task = this.tasks.get(id)
    if (task === undefined) return { kind: 'unknown-task' }
    return this.#retry(task, ({ status, verdict }) => {
      return statuses.some((each) => each === status) && (verdict !== 'valid' || status === 'TIMEOUT')
    })
  }

  retrySession(id: string): SessionRetry['kind'] {
    const session = this.sessions.get(id)
    if (session === undefined || this.deleted.has(session.task.id)) return 'unknown-session'
    if (session.state !== 'ended') return 'under-way'
    if (session.verdict === 'valid') return 'stands'
    return this.#retry(session.task, (each) => each === session).kind as SessionRetry['kind']
  }

  #retry(task: ModelTask, isWanted: (session: ModelSession) => boolean): TaskRetry {
    const again = task.sessions.filter((session) => session.state === 'ended' && isWanted(session))
    if (again.length === 0) return { kind: 'retried', sessions: 0, taskStatus: task.status }
    const usable = countUsable(task) - again.filter(({ isUsable }) => isUsable).length
    if (task.earlyStop !== undefined && usable >= task.earlyStop) return { kind: 'enough' }
    if (!this.#hasRoom(task.owner, again.length)) return { kind: 'over-quota' }
    for (const session of again) {
      queueAgain(session)
      Object.assign(session, { failures: 0, verdict: undefined, isUsable: false })
    }
    task.status = 'running'
    return { kind: 'retried', sessions: again.length, taskStatus: 'running' }
  }

  #heldBy(node: string): ModelSession[] {
    return [...this.sessions.values()].filter((each) => each.state === 'leased' && each.node === node)
  }

  #count(owner: string, state: ModelSession['state']): number {
    return [...this.sessions.values()].filter((each) => each.task.owner === owner && each.state === state).length
  }

  #hasRoom(owner: string, more: number): boolean {
    return this.#count(owner, 'queued') + more <= (this.quotas.get(owner)?.maxQueued ?? Infinity)
  }

  /** Returns whether the session is refilled. */
  #end(session: ModelSession, ending: ModelEnding): boolean {
    const { task } = session
    const isOwn = ending === 'well' || ending === 'out-of-time'
    const blame = isOwn ? 'policy' : failureClasses[ending].blame
    if (blame !== 'policy') session.failures += 1
    if (blame === 'infrastructure' && session.failures < task.maxFailures) {
      queueAgain(session)
      return true
    }
    const status = ending === 'well' ? 'COMPLETED' : ending === 'out-of-time' ? 'TIMEOUT' : 'ERROR'
    const verdict = blame === 'policy' ? 'valid' : 'failed'
    Object.assign(session, { state: 'ended', status, verdict, isUsable: isOwn })
    task.endings += 1
    if (task.earlyStop !== undefined && countUsable(task) >= task.earlyStop) this.#closeRest(task)
    if (task.sessions.every(({ state }) => state === 'ended')) {
      task.status = countValid(task) > 0 ? 'completed' : 'failed'
    }
    return false
  }

  #closeRest(task: ModelTask): void {
    for (const session of task.sessions) if (session.state !== 'ended') cancel(session)
  }
}

export function countValid({ sessions }: ModelTask): number {
  return sessions.filter(({ verdict }) => verdict === 'valid').length
}

export function countUsable({ sessions }: ModelTask): number {
  return sessions.filter(({ isUsable }) => isUsable).length
}

function cancel(session: ModelSession): void {
  session.cancelled.add(session.attempt)
  session.task.endings += 1
  Object.assign(session, { state: 'ended', status: 'CANCELLED', verdict: 'cancelled' })
}

function queueAgain(session: ModelSession): void {
  Object.assign(session, { state: 'queued', status: 'REGISTERED', attempt: session.attempt + 1, node: undefined })
}

function isNamed({ id, attempt }: ModelSession, holding: readonly Lease[]): boolean {
  return holding.some((lease) => lease.sessionId === id && lease.attempt === attempt)
}
