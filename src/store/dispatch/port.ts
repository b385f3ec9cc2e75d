import type { Clock } from '../../lib/async/clock.ts'
import type { IdSource } from '../../model/ids.ts'
import type { NodeRegistrationRequest, NodeStageMetrics } from '../../model/node.ts'
import type { SessionOrder } from '../../model/session-order.ts'
import type { SessionOutcome } from '../../model/session-outcome.ts'
import type { SessionStatus } from '../../model/session.ts'
import type { TaskRequest } from '../../model/task.ts'
import type { Database } from '../database.ts'
import type { TaskWord } from '../database/tables.ts'
import { accept } from './commands/accept.ts'
import { advancePolicy, cancelSession, cancelStale, cancelTask, getPolicy } from './commands/cancel.ts'
import type { Changes, News } from './internal/changes.ts'
import { clearDeleted } from './commands/clear-deleted.ts'
import { deleteTask } from './commands/delete-task.ts'
import { enqueue } from './commands/enqueue.ts'
import { joinNode, leaveNode } from './commands/join.ts'
import { createLeaseWatch } from './internal/lease-watch.ts'
import { createLeaseMemory, lease } from './commands/lease.ts'
import { loseNode } from './commands/lose.ts'
import { prune } from './commands/prune.ts'
import { release, releaseRest } from './commands/release.ts'
import { renew } from './commands/renew.ts'
import { retire } from './commands/retire.ts'
import { retrySession, retryTask } from './commands/retry.ts'
import { createSettleLanes } from './internal/settle-queue.ts'
import { updateTask } from './commands/update-task.ts'

export interface Submission {
  task: TaskRequest
  /** Labels a node must have to be given its sessions. */
  requires?: readonly string[]
  /** What is better warm where they run, such as `image:swe-42`: preferred, not demanded. */
  affinity?: readonly string[]
  /** How many attempts of one session infrastructure may spoil before the session has failed. Default 4. */
  maxFailures?: number
  /** Made for this version of the policy; cancelled once the current one is more than the limit ahead. */
  policyVersion?: number
  stalenessLimit?: number
}

export interface EnqueueOutcome {
  taskId: string
  /**
   * `same`: it was there, with this very body. `conflict`: it was there, with another. `stale`: nobody wants it any more.
   * `cancelled`: that was asked for before it came. `deleted`: it was there, and is over and deleted. `over-quota`: said
   * of all of a batch, none of which was created.
   */
  kind: 'created' | 'same' | 'conflict' | 'stale' | 'cancelled' | 'deleted' | 'over-quota'
  /** Of `created`: a task with this id was over, and has this id now. */
  archivedAs?: string
}

export interface EnqueueOptions {
  owner?: string
  /** The same for all tries of one submit: a repeat finds the task it created, also when that is over. */
  key?: string
  /** A task that is over makes room for a new run of its id, unless `key` is its own. Default: it stays. */
  isRerun?: boolean
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

/** `unknown`: it should join. `replaced`: another process has joined under its name, and it should stop. */
export type NodeStanding = 'member' | 'draining' | 'unknown' | 'replaced'

export interface LeaseRoom {
  freeSlots: number
  /** Absent: those it joined with. */
  labels?: readonly string[]
  /** What is warm there. */
  affinity?: readonly string[]
  /**
   * All that the node has. What it was given, does not name and has never renewed was lost on the way, and is released.
   * Only for nodes that make one such call at a time. Absent: nothing is taken back.
   */
  holding?: readonly Lease[]
  /** Of the process that asks; one that was replaced is given nothing. Absent: not checked. */
  bootId?: string
}

export interface LeaseAnswer {
  orders: LeasedOrder[]
  node: NodeStanding
}

export interface Renewal extends Lease {
  /** What the session is doing, for people to see. */
  status?: SessionStatus
  progress?: SessionProgress
}

export interface SessionProgress {
  calls: number
  tokens: number
}

export interface RenewalOutcome extends Lease {
  /** All but `held` mean: stop it. `accepted`: its result is here. `lost`: somebody else has it, or nobody knows it. */
  kind: 'held' | 'accepted' | 'cancelled' | 'lost'
}

export interface RenewAnswer {
  outcomes: RenewalOutcome[]
  node: NodeStanding
}

export interface Joining {
  registration: NodeRegistrationRequest
  labels: readonly string[]
  /** Of the process. Another one than before: what the node had and does not name is lost. */
  bootId: string
  /** The process whose place it takes, as it heard from us. */
  replaces?: string
  /** What it works on, or has finished and not delivered. */
  holding: readonly Lease[]
}

export type JoinAnswer =
  | {
      kind: 'joined'
      /** Of `holding`. */
      outcomes: RenewalOutcome[]
      /** Sessions of the process before that went back into the queue, or have failed. */
      lost: number
    }
  /** Another process has the name, and was not named. Nothing has changed. */
  | { kind: 'taken'; bootId: string }

/** Where the bytes of a result lie. They are there, for good, before it is handed to `accept`. */
export interface ResultReference {
  path: string
  digest: string
  bytes: number
}

/** A file of a session: `path` is its name there, `storedPath` where it lies here. */
export interface ArtifactReference {
  path: string
  storedPath: string
  bytes: number
  digest: string
  isCut: boolean
}

export type Acceptance =
  | { kind: 'accepted'; isRefilled: boolean; taskStatus: TaskWord }
  /** This very result had been accepted before; the node may forget it. */
  | { kind: 'duplicate' }
  | { kind: 'refused'; reason: 'stale' | 'cancelled' | 'unknown-session' }

export interface TaskChange {
  priority?: number
  /** Null: it is not to end early. Met already: it ends at once. */
  earlyStop?: number | null
}

/** `over`: only a task that is under way can be changed. */
export type UpdateOutcome = 'updated' | 'over' | 'unknown-task'

export type RetriedStatus = 'ERROR' | 'TIMEOUT' | 'CANCELLED'

/** `stale`: made for a policy that is too old by now. `enough`: early stop is met, and would end them at once. */
type RetryRefusal = 'stale' | 'over-quota' | 'enough'

export type TaskRetry =
  | { kind: 'retried'; sessions: number; taskStatus: TaskWord }
  | { kind: RetryRefusal | 'unknown-task' }

/** `stands`: it ended by the policy's own doing, and that is its result. */
export interface SessionRetry {
  kind: 'retried' | RetryRefusal | 'under-way' | 'stands' | 'unknown-session'
}

/** Ages in milliseconds, by the clock of whoever wrote them. Absent: those are kept. */
export interface PruneLimits {
  eventsOlderThanMs?: number
  /** Of tasks that were cancelled before they came. */
  tombstonesOlderThanMs?: number
  /** What is left of tasks that were deleted, so that they are not made anew. */
  deletedOlderThanMs?: number
  deliveredCallbacksOlderThanMs?: number
}

export type DeleteOutcome =
  /** What it had. */
  | { kind: 'deleted'; sessions: number; bytes: number }
  /** Only one that is over can be deleted. */
  | { kind: 'running' }
  | { kind: 'unknown-task' }

/** What is kept of tasks that are over. One whose trainer has still to be called back is kept in any case. */
export interface RetentionPolicy {
  /** Those that ended longer ago go. Absent: none for its age. */
  olderThanMs?: number
  /** Of the results and artifacts of tasks that are over; beyond it the oldest go. Absent: none for its size. */
  maxBytes?: number
  /** One that ended less long ago is not deleted for its size: it may not have been read yet. */
  keepAtLeastMs: number
}

/** Rows that are gone, and the files they named, which nobody names any more. */
export interface ClearedRows {
  taskId: string
  paths: string[]
}

/**
 * Who works on what. Every method is one step that has happened wholly or not at all, also when the process is killed,
 * and any number of servers may call them on one database. A session ends exactly once: only the attempt that holds it
 * can end it. Bytes of results, HTTP and the trainer's callbacks are the business of others.
 */
export interface Dispatch {
  /**
   * Tasks with all their sessions, in one transaction. Asking twice for the same is the same as asking once. Owners have
   * quotas, and an equal share of the nodes however many tasks they bring.
   */
  enqueue(submissions: readonly Submission[], more?: EnqueueOptions): Promise<EnqueueOutcome[]>
  /**
   * At most `freeSlots`. Highest priority first; within one, whoever of the owners has least under way, and of each of
   * them a part of every task in turn.
   */
  lease(nodeId: string, room: LeaseRoom): Promise<LeaseAnswer>
  /** Also says that the node is there, and how busy it is. */
  renew(
    nodeId: string,
    renewals: readonly Renewal[],
    more?: { metrics?: NodeStageMetrics; bootId?: string },
  ): Promise<RenewAnswer>
  /**
   * A node begins, or begins again. It is not draining any more. Who takes the place of another process must name it: a
   * call of a process that died may still be under way when its successor has joined.
   */
  join(joining: Joining): Promise<JoinAnswer>
  accept(
    outcome: SessionOutcome,
    result?: ResultReference,
    artifacts?: readonly ArtifactReference[],
  ): Promise<Acceptance>
  /** The node gives work back that it will not do; that is nobody's failure. Those that were its own to give. */
  release(nodeId: string, leases: readonly Lease[], bootId?: string): Promise<Lease[]>
  /** The node goes away, and gives all back. How many that were; undefined when it is not that process's to say. */
  leave(nodeId: string, bootId?: string): Promise<number | undefined>
  /** The node is known to be dead, or to have begun again: nobody need wait for its leases to run out. */
  loseNode(nodeId: string): Promise<number>
  /**
   * What a cancelled session still brings is refused. Undefined: there is no such task. With `registerIfMissing` there is
   * one then, cancelled, so that a submission which comes late is refused.
   */
  cancelTask(taskId: string, more?: { registerIfMissing?: boolean }): Promise<TaskWord | undefined>
  /** Whether it was still to be done. */
  cancelSession(sessionId: string): Promise<boolean>
  updateTask(taskId: string, change: TaskChange): Promise<UpdateOutcome>
  /**
   * Makes sessions again that ended with one of these statuses, as new ones are made: their failures are forgotten. Not
   * those that ended by the policy's own doing, but for `TIMEOUT`. The task runs again, and will be told of again.
   */
  retryTask(taskId: string, statuses: readonly RetriedStatus[]): Promise<TaskRetry>
  retrySession(sessionId: string): Promise<SessionRetry>
  /** The engines serve this version now: tasks that it makes too old are cancelled. The version that holds. */
  advancePolicy(version: number): Promise<number>
  getPolicy(): Promise<number>
  /**
   * To be called several times within the time of a lease, every second or so: finds those that are silent and gives them
   * to others, and wakes those that rest after a failure. How long is counted here, between calls, on a clock that never
   * jumps; see lease-watch.ts. How many were lost.
   */
  expire(): Promise<number>
  /**
   * A task that is over is not there any more for whoever asks, and its callbacks are dropped. Its id is remembered until
   * `prune` forgets it, so that a submission that comes late does not run it again. Its rows are left to `clearDeleted`.
   */
  deleteTask(taskId: string): Promise<DeleteOutcome>
  /** Deletes some tasks that are not to be kept any longer, oldest first. Which; none: there are no more. */
  retire(policy: RetentionPolicy): Promise<string[]>
  /**
   * Takes away some rows of this deleted task, or of any. Their files are to be removed then, not before: a row must never
   * name a file that is gone, and a file that no row names is swept. Undefined: there are no more, or others are at them.
   */
  clearDeleted(taskId?: string): Promise<ClearedRows | undefined>
  /** Forgets what nobody asks for any more. How many rows. */
  prune(limits: PruneLimits): Promise<number>
}

export interface DispatchDeps {
  database: Database
  clock: Pick<Clock, 'now'>
  /** Milliseconds that only go forward, such as `performance.now`. */
  monotonic: () => number
  ids: IdSource
  /** Told of every task that something happens to. */
  changes?: Pick<Changes, 'announce'>
  /** How long a lease lives without renewal. Default 60 s. */
  leaseMs?: number
  /** How long a session rests after infrastructure has spoilt it once, before it is queued again. Default 1 s. */
  restMs?: number
  /** Samples of a task that go out before it is another task's turn. Default 16, so that most groups stay together. */
  samplesPerRound?: number
}

const DEFAULT_LEASE_MS = 60_000
const DEFAULT_REST_MS = 1000
const DEFAULT_SAMPLES_PER_ROUND = 16
/** Fewer than there are connections: accepting must not keep nodes from renewing. */
const SETTLE_LANES = 4

export function createDispatch(deps: DispatchDeps): Dispatch {
  const { db } = deps.database
  const now = (): number => deps.clock.now()
  const announce = (taskIds: Iterable<string>, news?: News): void => deps.changes?.announce(taskIds, news)
  const {
    leaseMs = DEFAULT_LEASE_MS,
    restMs = DEFAULT_REST_MS,
    samplesPerRound = DEFAULT_SAMPLES_PER_ROUND,
    monotonic,
    ids,
  } = deps
  // PGlite does one thing at a time anyhow.
  const lanes = deps.database.kind === 'embedded' ? 1 : SETTLE_LANES
  const settle = createSettleLanes(db, { lanes, now, isRestful: restMs > 0, announce })
  const watch = createLeaseWatch({ db, settle, monotonic, leaseMs, restMs })
  const memory = createLeaseMemory(monotonic, now)
  return {
    async enqueue(submissions, { owner = '', key, isRerun = false } = {}) {
      const outcomes = await enqueue(db, submissions, { now: now(), ids, owner, samplesPerRound, key, isRerun })
      announce(outcomes.filter(({ kind }) => kind === 'created').map(({ taskId }) => taskId))
      return outcomes
    },
    async lease(nodeId, room) {
      const { holding, bootId } = room
      if (holding !== undefined) {
        const released = await releaseRest(db, nodeId, { holding, bootId }, now())
        announce(
          released.map(({ taskId }) => taskId),
          'moved',
        )
      }
      const { orders, node } = await lease(db, nodeId, room, memory)
      announce(
        orders.map(({ task }) => task.task_id),
        'moved',
      )
      return { orders: orders.map((order) => ({ order, leaseMs })), node }
    },
    async renew(nodeId, renewals, more = {}) {
      const { outcomes, node, changed } = await renew(db, nodeId, renewals, more, now())
      announce(changed, 'moved')
      return { outcomes, node }
    },
    join: (joining) => joinNode(db, settle, joining, now()),
    accept: (outcome, result, artifacts) => accept(db, outcome, { result, artifacts }, settle),
    async release(nodeId, leases, bootId) {
      const released = await release(db, nodeId, { leases, bootId }, now())
      announce(released.map(({ taskId }) => taskId))
      return released.map(({ sessionId, attempt }) => ({ sessionId, attempt }))
    },
    async leave(nodeId, bootId) {
      const released = await leaveNode(db, nodeId, bootId, now())
      announce(released?.map(({ taskId }) => taskId) ?? [])
      return released?.length
    },
    loseNode: (nodeId) => loseNode(db, settle, nodeId),
    async cancelTask(taskId, more) {
      const status = await cancelTask(db, taskId, now(), more)
      announce([taskId])
      return status
    },
    async cancelSession(sessionId) {
      const { isCancelled, taskId } = await cancelSession(db, sessionId, now())
      if (taskId !== undefined) announce([taskId])
      return isCancelled
    },
    async updateTask(taskId, change) {
      const outcome = await updateTask(db, taskId, change, now())
      announce([taskId])
      return outcome
    },
    async retryTask(taskId, statuses) {
      const outcome = await retryTask(db, taskId, statuses, { now: now(), samplesPerRound })
      announce([taskId])
      return outcome
    },
    async retrySession(sessionId) {
      const { kind, taskId } = await retrySession(db, sessionId, { now: now(), samplesPerRound })
      if (taskId !== undefined) announce([taskId])
      return { kind }
    },
    async advancePolicy(version) {
      const held = await advancePolicy(db, version)
      announce(await cancelStale(db, now()))
      return held
    },
    getPolicy: () => getPolicy(db),
    async expire() {
      announce(await cancelStale(db, now()))
      return watch.sweep()
    },
    async deleteTask(taskId) {
      const outcome = await deleteTask(db, taskId, now())
      if (outcome.kind === 'deleted') announce([taskId])
      return outcome
    },
    async retire(policy) {
      const retired = await retire(db, policy, now())
      announce(retired)
      return retired
    },
    clearDeleted: (taskId) => clearDeleted(db, taskId),
    prune: (limits) => prune(db, limits, now()),
  }
}
