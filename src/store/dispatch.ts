import type { Clock } from '../lib/clock.ts'
import type { IdSource } from '../model/ids.ts'
import type { SessionOrder } from '../model/session-order.ts'
import type { SessionOutcome } from '../model/session-outcome.ts'
import type { SessionStatus } from '../model/session.ts'
import type { TaskRequest } from '../model/task.ts'
import type { Database } from './database.ts'
import type { TaskWord } from './database/tables.ts'
import { accept } from './dispatch/accept.ts'
import { advancePolicy, cancelSession, cancelStale, cancelTask } from './dispatch/cancel.ts'
import { enqueue } from './dispatch/enqueue.ts'
import { createLeaseWatch } from './dispatch/lease-watch.ts'
import { createSettleLanes } from './dispatch/settle-lanes.ts'
import { lease, loseNode, release, renew } from './dispatch/leases.ts'

export interface Submission {
  task: TaskRequest
  /** Labels a node must have to be given its sessions. */
  requires?: readonly string[]
  /** How many attempts of one session infrastructure may spoil before the session has failed. Default 4. */
  maxFailures?: number
  /** Made for this version of the policy; cancelled once the current one is more than the limit ahead. */
  policyVersion?: number
  stalenessLimit?: number
}

export interface EnqueueOutcome {
  taskId: string
  /** `same`: it was there, with this very body. `conflict`: it was there, with another. `stale`: nobody wants it any more. */
  kind: 'created' | 'same' | 'conflict' | 'stale'
}

/** One attempt in the hands of a node. The attempt number is the fencing token. */
export interface Lease {
  sessionId: string
  attempt: number
}

export interface LeasedOrder {
  order: SessionOrder
  /** From now: the node must renew within it, and had better do so three times. */
  leaseMs: number
}

export interface Renewal extends Lease {
  /** What the session is doing, for people to see. */
  status?: SessionStatus
}

export interface RenewalOutcome extends Lease {
  /** All but `held` mean: stop it. `accepted`: its result is here. `lost`: somebody else has it, or nobody knows it. */
  kind: 'held' | 'accepted' | 'cancelled' | 'lost'
}

/** Where the bytes of a result lie. They are there, for good, before it is handed to `accept`. */
export interface ResultReference {
  path: string
  digest: string
  bytes: number
}

export type Acceptance =
  | { kind: 'accepted'; isRefilled: boolean; taskStatus: TaskWord }
  /** This very result had been accepted before; the node may forget it. */
  | { kind: 'duplicate' }
  | { kind: 'refused'; reason: 'stale' | 'cancelled' | 'unknown-session' }

/**
 * Who works on what. Every method is one step that has happened wholly or not at all, also when the process is killed,
 * and any number of servers may call them on one database. A session ends exactly once: only the attempt that holds it
 * can end it. Bytes of results, HTTP and the trainer's callbacks are the business of others.
 */
export interface Dispatch {
  /** Tasks with all their sessions, in one transaction. Asking twice for the same is the same as asking once. */
  enqueue(submissions: readonly Submission[]): Promise<EnqueueOutcome[]>
  /** At most `freeSlots`; highest priority first, and within one priority a part of every task in turn. */
  lease(nodeId: string, room: { labels: readonly string[]; freeSlots: number }): Promise<LeasedOrder[]>
  renew(nodeId: string, renewals: readonly Renewal[]): Promise<RenewalOutcome[]>
  accept(outcome: SessionOutcome, result?: ResultReference): Promise<Acceptance>
  /** The node gives work back that it will not do; that is nobody's failure. Those that were its own to give. */
  release(nodeId: string, leases: readonly Lease[]): Promise<Lease[]>
  /** The node is known to be dead, or to have begun again: nobody need wait for its leases to run out. */
  loseNode(nodeId: string): Promise<number>
  /** What a cancelled session still brings is refused. Undefined: there is no such task. */
  cancelTask(taskId: string): Promise<TaskWord | undefined>
  /** Whether it was still to be done. */
  cancelSession(sessionId: string): Promise<boolean>
  /** The engines serve this version now: tasks that it makes too old are cancelled. */
  advancePolicy(version: number): Promise<void>
  /**
   * To be called several times within the time of a lease: finds those that are silent and gives them to others. How
   * long one was silent is counted here, between calls, on a clock that never jumps; see lease-watch.ts.
   */
  expire(): Promise<number>
}

export interface DispatchDeps {
  database: Database
  clock: Pick<Clock, 'now'>
  /** Milliseconds that only go forward, such as `performance.now`. */
  monotonic: () => number
  ids: IdSource
  /** How long a lease lives without renewal. Default 60 s. */
  leaseMs?: number
  /** Samples of a task that go out before it is another task's turn. Default 16, so that most groups stay together. */
  samplesPerRound?: number
}

const DEFAULT_LEASE_MS = 60_000
const DEFAULT_SAMPLES_PER_ROUND = 16
/** Fewer than there are connections: accepting must not keep nodes from renewing. */
const SETTLE_LANES = 4

export function createDispatch(deps: DispatchDeps): Dispatch {
  const { db } = deps.database
  const now = (): number => deps.clock.now()
  const leaseMs = deps.leaseMs ?? DEFAULT_LEASE_MS
  const samplesPerRound = deps.samplesPerRound ?? DEFAULT_SAMPLES_PER_ROUND
  const watch = createLeaseWatch({ db, now, monotonic: deps.monotonic, leaseMs })
  // PGlite does one thing at a time anyhow.
  const settle = createSettleLanes(db, { lanes: deps.database.kind === 'embedded' ? 1 : SETTLE_LANES, now })
  return {
    enqueue: (submissions) => enqueue(db, submissions, { now: now(), ids: deps.ids, samplesPerRound }),
    async lease(nodeId, room) {
      const orders = await lease(db, nodeId, room, now())
      return orders.map((order) => ({ order, leaseMs }))
    },
    renew: (nodeId, renewals) => renew(db, nodeId, renewals),
    accept: (outcome, result) => accept(db, outcome, result, settle),
    release: (nodeId, leases) => release(db, nodeId, leases, now()),
    loseNode: (nodeId) => loseNode(db, nodeId, now()),
    cancelTask: (taskId) => cancelTask(db, taskId, now()),
    cancelSession: (sessionId) => cancelSession(db, sessionId, now()),
    advancePolicy: (version) => advancePolicy(db, version, now()),
    async expire() {
      await cancelStale(db, now())
      return watch.sweep()
    },
  }
}
