import { failureClasses, type FailureCode } from '../../src/model/failure.ts'
import type { Acceptance, Lease, RenewalOutcome } from '../../src/store/dispatch.ts'

interface ModelSession {
  id: string
  task: ModelTask
  state: 'queued' | 'leased' | 'ended'
  status: string
  attempt: number
  failures: number
  node?: string
  /** Attempts that were accepted. */
  accepted: Set<number>
}

interface ModelTask {
  id: string
  priority: number
  earlyStop?: number
  maxFailures: number
  status: 'running' | 'completed' | 'failed' | 'cancelled'
  valid: number
  usable: number
  sessions: ModelSession[]
}

/** What dispatch is to do, said in the plainest way: one thread, a list, no database. Who comes first is left open. */
export class DispatchModel {
  readonly tasks = new Map<string, ModelTask>()
  readonly sessions = new Map<string, ModelSession>()

  submit(task: Pick<ModelTask, 'id' | 'priority' | 'earlyStop' | 'maxFailures'>, sessionIds: readonly string[]): void {
    const made: ModelTask = { ...task, status: 'running', valid: 0, usable: 0, sessions: [] }
    this.tasks.set(task.id, made)
    for (const id of sessionIds) {
      const session: ModelSession = {
        id,
        task: made,
        state: 'queued',
        status: 'REGISTERED',
        attempt: 1,
        failures: 0,
        accepted: new Set<number>(),
      }
      made.sessions.push(session)
      this.sessions.set(id, session)
    }
  }

  /** Takes over what was leased, after seeing that it may be: as many as there are, and none before a better one. */
  take(node: string, freeSlots: number, leases: readonly Lease[]): void {
    const queued = [...this.sessions.values()].filter(({ state }) => state === 'queued')
    if (leases.length !== Math.min(freeSlots, queued.length)) throw new Error(`${leases.length} of ${queued.length}`)
    for (const { sessionId, attempt } of leases) {
      const session = this.sessions.get(sessionId)
      if (session?.state !== 'queued' || session.attempt !== attempt) throw new Error(`${sessionId} was not to be had`)
      Object.assign(session, { state: 'leased', node })
    }
    const worst = Math.min(...leases.map(({ sessionId }) => this.sessions.get(sessionId)!.task.priority))
    if (queued.some(({ state, task }) => state === 'queued' && task.priority > worst)) throw new Error('passed over')
  }

  accept(node: string, { sessionId, attempt }: Lease, code: FailureCode | undefined): Acceptance {
    const session = this.sessions.get(sessionId)
    if (session === undefined) return { kind: 'refused', reason: 'unknown-session' }
    if (session.state !== 'leased' || session.attempt !== attempt || session.node !== node) {
      if (session.accepted.has(attempt)) return { kind: 'duplicate' }
      const isCancelled = session.attempt === attempt && session.status === 'CANCELLED'
      return { kind: 'refused', reason: isCancelled ? 'cancelled' : 'stale' }
    }
    session.accepted.add(attempt)
    return { kind: 'accepted', isRefilled: this.#end(session, code), taskStatus: session.task.status }
  }

  renew(node: string, lease: Lease): RenewalOutcome {
    const session = this.sessions.get(lease.sessionId)
    const isCurrent = session?.attempt === lease.attempt
    if (isCurrent && session.state === 'leased' && session.node === node) return { ...lease, kind: 'held' }
    if (session?.accepted.has(lease.attempt)) return { ...lease, kind: 'accepted' }
    return { ...lease, kind: isCurrent && session.status === 'CANCELLED' ? 'cancelled' : 'lost' }
  }

  release(node: string, leases: readonly Lease[]): Lease[] {
    return leases.filter((lease) => {
      if (this.renew(node, lease).kind !== 'held') return false
      const session = this.sessions.get(lease.sessionId)!
      Object.assign(session, { state: 'queued', status: 'REGISTERED', attempt: session.attempt + 1, node: undefined })
      return true
    })
  }

  loseNode(node: string): number {
    const held = [...this.sessions.values()].filter((each) => each.state === 'leased' && each.node === node)
    held.sort((a, b) => (a.id < b.id ? -1 : 1))
    let lost = 0
    for (const session of held) {
      if (session.state !== 'leased') continue
      this.#end(session, 'session.node-lost')
      lost += 1
    }
    return lost
  }

  cancelTask(id: string): string | undefined {
    const task = this.tasks.get(id)
    if (task?.status === 'running') {
      this.#closeRest(task)
      task.status = 'cancelled'
    }
    return task?.status
  }

  cancelSession(id: string): boolean {
    const session = this.sessions.get(id)
    if (session === undefined || session.state === 'ended') return false
    Object.assign(session, { state: 'ended', status: 'CANCELLED' })
    const { task } = session
    if (task.sessions.every(({ state }) => state === 'ended')) {
      const hasFailed = task.sessions.some(({ status }) => status === 'ERROR')
      task.status = task.valid > 0 ? 'completed' : hasFailed ? 'failed' : 'cancelled'
    }
    return true
  }

  /** Whether it is made again. */
  #end(session: ModelSession, code: FailureCode | undefined): boolean {
    const { task } = session
    const blame = code === undefined ? 'policy' : failureClasses[code].blame
    if (blame !== 'policy') session.failures += 1
    if (blame === 'infrastructure' && session.failures < task.maxFailures) {
      Object.assign(session, { state: 'queued', status: 'REGISTERED', attempt: session.attempt + 1, node: undefined })
      return true
    }
    Object.assign(session, { state: 'ended', status: code === undefined ? 'COMPLETED' : 'ERROR' })
    if (blame === 'policy') task.valid += 1
    if (code === undefined) task.usable += 1
    if (task.earlyStop !== undefined && task.usable >= task.earlyStop) this.#closeRest(task)
    if (task.sessions.every(({ state }) => state === 'ended')) task.status = task.valid > 0 ? 'completed' : 'failed'
    return false
  }

  #closeRest(task: ModelTask): void {
    for (const session of task.sessions) {
      if (session.state !== 'ended') Object.assign(session, { state: 'ended', status: 'CANCELLED' })
    }
  }
}
