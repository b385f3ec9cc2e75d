import type { Clock } from '../../lib/async/clock.ts'
import type { IdSource } from '../../model/ids.ts'
import type { NodeStageMetrics } from '../../model/node.ts'
import type { PolicyState } from '../../model/policy.ts'
import type { SessionOutcome } from '../../model/session-outcome.ts'
import { type Database, type DatabaseLocation, openDatabase, type Sql } from '../database.ts'
import type { TaskState } from '../database/tables.ts'
import { accept } from './commands/accept.ts'
import { claimCallbacks, type ClaimOptions, requeueCallback, settleCallback } from './commands/callbacks.ts'
import { cancelSession, cancelTask } from './commands/cancel.ts'
import { cancelIfStale, cancelStale } from './commands/cancel-stale.ts'
import { changePolicy, type PolicyChange } from './commands/change-policy.ts'
import { clearDeleted } from './commands/clear-deleted.ts'
import { confirmPolicy } from './commands/confirm-policy.ts'
import { deleteTask } from './commands/delete-task.ts'
import { enqueue } from './commands/enqueue.ts'
import { joinNode, leaveNode } from './commands/join.ts'
import { createLeaseState, lease, type LeaseState } from './commands/lease.ts'
import { loseNode } from './commands/lose-node.ts'
import { drainNode, type NewNode, putNode, removeIdleNode, touchNode } from './commands/nodes.ts'
import { prune } from './commands/prune.ts'
import { putQuota } from './commands/put-quota.ts'
import { release, releaseRest } from './commands/release.ts'
import { renew } from './commands/renew.ts'
import { retire } from './commands/retire.ts'
import { retrySession, retryTask } from './commands/retry.ts'
import { updateTask } from './commands/update-task.ts'
import { type Changes, openChanges } from './internal/changes.ts'
import { createLeaseWatch, type LeaseWatch } from './internal/lease-watch.ts'
import { createNodeWatch, type NodeWatch } from './internal/node-watch.ts'
import { POLICY_CHANNEL, type PolicyNotice } from './internal/policy-channel.ts'
import { createSettleQueues, type Settle } from './internal/settle-queue.ts'
import { WORK_CHANNEL } from './internal/work-channel.ts'
import { createQueries, type Queries } from './queries/queries.ts'
import type { Quota } from './queries/quotas.ts'
import type {
  Acceptance,
  ArtifactReference,
  CallbackEnd,
  ChangeKind,
  ChangeListener,
  ClearedRows,
  DeleteOutcome,
  DueCallback,
  EnqueueOptions,
  EnqueueOutcome,
  JoinRequest,
  JoinResponse,
  Lease,
  LeaseRequest,
  LeaseResponse,
  NodeMembership,
  PolicyConfirmation,
  PruneLimits,
  Renewal,
  RenewResponse,
  ResultReference,
  RetentionPolicy,
  RetriedStatus,
  SessionRetry,
  Submission,
  TaskRetry,
  TaskUpdate,
  UpdateOutcome,
} from './types.ts'

export { EARLY_STOP_FIELD } from './internal/close-task.ts'
export type { DatabaseLocation } from '../database.ts'
export type { TaskState } from '../database/tables.ts'
export type { StoredCallback } from './queries/callbacks.ts'
export type { EventPage, StoredEvent } from './queries/events.ts'
export type { NodeFit } from './queries/node-fit.ts'
export type { StoredNode } from './queries/nodes.ts'
export type { QuotaUse } from './queries/quotas.ts'
export type { AttemptSummary, SessionSummary } from './queries/sessions.ts'
export type { TaskProgress } from './queries/task-progress.ts'
export type { Ending, TaskSummary } from './queries/tasks.ts'
export type * from './types.ts'

export interface DispatchOptions {
  clock: Pick<Clock, 'now'>
  /** Monotonic milliseconds, such as `performance.now`. */
  monotonic: () => number
  ids: IdSource
  /** How long a lease is valid without renewal. Default 60 s. */
  leaseMs?: number
  /** Delay before a session is queued again after its first failure because of infrastructure. Default 1 s. */
  restMs?: number
  /** Samples of a task that are leased before another task has its turn. Default 16, so that most groups stay together. */
  samplesPerRound?: number
}

export interface DispatchDeps extends DispatchOptions {
  database: Database
  /** Absent: changes are not announced. */
  changes?: Changes
}

const DEFAULT_LEASE_MS = 60_000
const DEFAULT_REST_MS = 1000
const DEFAULT_SAMPLES_PER_ROUND = 16
/** Fewer than the connections of the pool, so that accepting results does not block renewals. */
const SETTLE_QUEUES = 4

/**
 * Tasks, sessions, leases, nodes and callbacks in the database. Every command is atomic, also when the process is killed, and
 * any number of servers may share one database. A session ends exactly once: only the attempt that holds it can end it.
 * Result files, HTTP and the delivery of callbacks are outside.
 */
export class Dispatch implements AsyncDisposable {
  readonly tasks: Queries['tasks']
  readonly sessions: Queries['sessions']
  readonly nodes: Queries['nodes']
  readonly events: Queries['events']
  readonly callbacks: Queries['callbacks']
  readonly quotas: Queries['quotas']
  readonly policy: Queries['policy']
  readonly files: Queries['files']
  readonly #database: Database
  readonly #db: Sql
  readonly #changes: Changes | undefined
  readonly #now: () => number
  readonly #ids: IdSource
  readonly #leaseMs: number
  readonly #samplesPerRound: number
  readonly #settle: Settle
  readonly #leaseWatch: LeaseWatch
  readonly #nodeWatch: NodeWatch
  readonly #leaseState: LeaseState
  readonly #owned = new AsyncDisposableStack()

  constructor(deps: DispatchDeps) {
    const { database, monotonic, leaseMs = DEFAULT_LEASE_MS, restMs = DEFAULT_REST_MS } = deps
    const { db } = database
    this.#database = database
    this.#db = db
    this.#changes = deps.changes
    this.#now = () => deps.clock.now()
    this.#ids = deps.ids
    this.#leaseMs = leaseMs
    this.#samplesPerRound = deps.samplesPerRound ?? DEFAULT_SAMPLES_PER_ROUND
    this.#settle = createSettleQueues(db, {
      // PGlite runs one statement at a time.
      queues: database.kind === 'embedded' ? 1 : SETTLE_QUEUES,
      now: this.#now,
      hasRetryDelay: restMs > 0,
      announce: (taskIds, kind) => this.#announce(taskIds, kind),
    })
    this.#leaseWatch = createLeaseWatch({ db, settle: this.#settle, monotonic, leaseMs, restMs })
    this.#nodeWatch = createNodeWatch({ db, monotonic, leaseMs })
    this.#leaseState = createLeaseState(monotonic, this.#now)
    const queries = createQueries(db)
    this.tasks = queries.tasks
    this.sessions = queries.sessions
    this.nodes = queries.nodes
    this.events = queries.events
    this.callbacks = queries.callbacks
    this.quotas = queries.quotas
    this.policy = queries.policy
    this.files = queries.files
  }

  /** Opens the database; disposing closes it. */
  static async open(location: DatabaseLocation, options: DispatchOptions): Promise<Dispatch> {
    await using owned = new AsyncDisposableStack()
    const database = owned.use(await openDatabase(location))
    const changes = owned.use(await openChanges(database))
    const dispatch = new Dispatch({ ...options, database, changes })
    dispatch.#owned.use(owned.move())
    return dispatch
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#owned.disposeAsync()
  }

  /** Calls the listener when sessions may have become leasable. Resolves with the function that stops it. */
  onWork(listener: () => void): Promise<() => Promise<void>> {
    return this.#database.listen(WORK_CHANNEL, listener)
  }

  /** Calls the listener when tasks may have changed. Returns the function that stops it. */
  onTaskChange(listener: ChangeListener): () => void {
    return this.#changes?.subscribe(listener) ?? (() => {})
  }

  /** Calls the listener when the policy state or the confirmations of nodes may have changed; `all`: some of both. */
  onPolicy(listener: (notice: PolicyNotice | 'all') => void): Promise<() => Promise<void>> {
    return this.#database.listen(POLICY_CHANNEL, (payload) =>
      listener(payload === '' ? 'all' : (payload as PolicyNotice)),
    )
  }

  /** Must be called every few minutes, see `Database`. */
  maintain(): Promise<void> {
    return this.#database.maintain()
  }

  /**
   * Creates tasks with all their sessions in one transaction. Repeating the same call has no further effect. Each owner has a
   * quota, and an equal share of the nodes, independent of its number of tasks.
   */
  async enqueue(submissions: readonly Submission[], options: EnqueueOptions = {}): Promise<EnqueueOutcome[]> {
    const { owner = '', key, isRerun = false } = options
    const deps = { now: this.#now(), ids: this.#ids, owner, samplesPerRound: this.#samplesPerRound, key, isRerun }
    const outcomes = await enqueue(this.#db, submissions, deps)
    this.#announce(outcomes.filter(({ kind }) => kind === 'created').map(({ taskId }) => taskId))
    return outcomes
  }

  /**
   * Leases at most `freeSlots` sessions. Highest priority first; within a priority the owner with the fewest running sessions
   * first, and of each owner some samples of every task in turn.
   */
  async lease(nodeId: string, request: LeaseRequest): Promise<LeaseResponse> {
    const { holding, bootId } = request
    if (holding !== undefined) {
      const released = await releaseRest(this.#db, nodeId, { holding, bootId }, this.#now())
      this.#announce(toTaskIds(released), 'moved')
    }
    const { orders, node } = await lease(this.#db, nodeId, request, this.#leaseState)
    const taskIds = orders.map(({ task }) => task.task_id)
    this.#announce(taskIds, 'moved')
    return { orders: orders.map((order) => ({ order, leaseMs: this.#leaseMs })), node }
  }

  /** Also stores when the node was last seen, and its metrics. */
  async renew(
    nodeId: string,
    renewals: readonly Renewal[],
    options: { metrics?: NodeStageMetrics; bootId?: string } = {},
  ): Promise<RenewResponse> {
    const { outcomes, node, changed } = await renew(this.#db, nodeId, renewals, options, this.#now())
    this.#announce(changed, 'moved')
    return { outcomes, node }
  }

  /**
   * A node starts or restarts; it no longer drains. A process that replaces another must name it in `replaces`, so that a
   * delayed join request from a dead process cannot evict its successor.
   */
  join(request: JoinRequest): Promise<JoinResponse> {
    return joinNode(this.#db, this.#settle, request, this.#now())
  }

  /** Accepts the result of an attempt once. A result with tokens beyond the staleness limit of its task is refused. */
  async accept(
    outcome: SessionOutcome,
    result?: ResultReference,
    artifacts?: readonly ArtifactReference[],
  ): Promise<Acceptance> {
    const staleTask = await cancelIfStale(this.#db, outcome, this.#now())
    if (staleTask !== undefined) {
      this.#announce([staleTask])
      return { kind: 'refused', reason: 'cancelled' }
    }
    return accept(this.#db, outcome, { result, artifacts }, this.#settle)
  }

  /** Requeues sessions that the node will not run; does not count as a failure. Returns those that the node held. */
  async release(nodeId: string, leases: readonly Lease[], bootId?: string): Promise<Lease[]> {
    const released = await release(this.#db, nodeId, { leases, bootId }, this.#now())
    this.#announce(toTaskIds(released))
    return released.map(({ sessionId, attempt }) => ({ sessionId, attempt }))
  }

  /** Removes the node and requeues its sessions. Returns their number; undefined if another process replaced this one. */
  async leave(nodeId: string, bootId?: string): Promise<number | undefined> {
    const released = await leaveNode(this.#db, nodeId, bootId, this.#now())
    this.#announce(toTaskIds(released ?? []))
    return released?.length
  }

  /** Ends all leases of a node that is known to be dead, without waiting for them to expire. Returns their number. */
  loseNode(nodeId: string): Promise<number> {
    return loseNode(this.#db, this.#settle, nodeId)
  }

  putNode(node: NewNode): Promise<void> {
    return putNode(this.#db, node, this.#now())
  }

  /** Stores a heartbeat. False if the node does not exist. */
  touchNode(nodeId: string, metrics: NodeStageMetrics): Promise<boolean> {
    return touchNode(this.#db, nodeId, metrics, this.#now())
  }

  /** A draining node gets no new leases. False if the node does not exist. */
  drainNode(nodeId: string): Promise<boolean> {
    return drainNode(this.#db, nodeId)
  }

  /** Removes a node that holds no lease. Whether it was removed. */
  removeIdleNode(nodeId: string): Promise<boolean> {
    return removeIdleNode(this.#db, nodeId)
  }

  /**
   * Results of cancelled sessions are refused. Undefined if the task does not exist; with `registerIfMissing` a tombstone is
   * stored, which rejects a submission that arrives later.
   */
  async cancelTask(taskId: string, options?: { registerIfMissing?: boolean }): Promise<TaskState | undefined> {
    const status = await cancelTask(this.#db, taskId, this.#now(), options)
    this.#announce([taskId])
    return status
  }

  /** Whether the session was unfinished. */
  async cancelSession(sessionId: string): Promise<boolean> {
    const { isCancelled, taskId } = await cancelSession(this.#db, sessionId, this.#now())
    if (taskId !== undefined) this.#announce([taskId])
    return isCancelled
  }

  async updateTask(taskId: string, update: TaskUpdate): Promise<UpdateOutcome> {
    const outcome = await updateTask(this.#db, taskId, update, this.#now())
    this.#announce([taskId])
    return outcome
  }

  /**
   * Queues sessions again that ended with one of these statuses, with no failures counted. Sessions whose end the agent caused
   * are final, except `TIMEOUT`. The task runs again, and its callback is sent again.
   */
  async retryTask(taskId: string, statuses: readonly RetriedStatus[]): Promise<TaskRetry> {
    const deps = { now: this.#now(), samplesPerRound: this.#samplesPerRound }
    const outcome = await retryTask(this.#db, taskId, statuses, deps)
    this.#announce([taskId])
    return outcome
  }

  async retrySession(sessionId: string): Promise<SessionRetry> {
    const deps = { now: this.#now(), samplesPerRound: this.#samplesPerRound }
    const { kind, taskId } = await retrySession(this.#db, sessionId, deps)
    if (taskId !== undefined) this.#announce([taskId])
    return { kind }
  }

  /** Changes what all gateways must apply, and cancels tasks and sessions that are now stale. Returns the current state. */
  async changePolicy(change: PolicyChange): Promise<PolicyState> {
    const state = await changePolicy(this.#db, change)
    if (change.version !== undefined) this.#announce(await cancelStale(this.#db, this.#now()))
    return state
  }

  /** Stores what the gateway of a node has applied. */
  confirmPolicy(nodeId: string, confirmation: PolicyConfirmation): Promise<NodeMembership> {
    return confirmPolicy(this.#db, nodeId, confirmation)
  }

  /**
   * Whether the node sent no renewal for the time of a lease. Its leases expire at the same time, so results of its calls
   * are refused. `seenAt` of the node is newer than what this server has noticed.
   */
  isSilent(nodeId: string, seenAt?: number): boolean {
    return this.#nodeWatch.isSilent(nodeId, seenAt)
  }

  putQuota(owner: string, quota: Quota): Promise<void> {
    return putQuota(this.#db, owner, quota)
  }

  /**
   * Must be called several times within a lease, about every second: ends leases that are not renewed, and queues sessions
   * again whose retry delay is over. Time is measured between calls on the monotonic clock; see lease-watch.ts. Returns the
   * number of lost leases.
   */
  async expire(): Promise<number> {
    this.#announce(await cancelStale(this.#db, this.#now()))
    await this.#nodeWatch.sweep()
    return this.#leaseWatch.sweep()
  }

  /**
   * Hides a finished task from all queries and drops its callbacks. Its id stays reserved until `prune`, so that a late
   * submission does not run it again. `clearDeleted` removes its rows.
   */
  async deleteTask(taskId: string): Promise<DeleteOutcome> {
    const outcome = await deleteTask(this.#db, taskId, this.#now())
    if (outcome.kind === 'deleted') this.#announce([taskId])
    return outcome
  }

  /** Deletes some tasks that exceed the retention policy, oldest first. Returns their ids; empty if no more do. */
  async retire(policy: RetentionPolicy): Promise<string[]> {
    const retired = await retire(this.#db, policy, this.#now())
    this.#announce(retired)
    return retired
  }

  /**
   * Deletes some rows of this deleted task, or of any. The caller must remove the files afterwards, not before: a row never
   * refers to a missing file, and a file without a row is swept. Undefined if no more remain, or other servers clear them.
   */
  clearDeleted(taskId?: string): Promise<ClearedRows | undefined> {
    return clearDeleted(this.#db, taskId)
  }

  /** Deletes old rows. Returns their number. */
  prune(limits: PruneLimits): Promise<number> {
    return prune(this.#db, limits, this.#now())
  }

  /** Claims due callbacks for this server. `now`: Unix milliseconds on the clock that `settleCallback` uses. */
  claimCallbacks(options: ClaimOptions, now: number): Promise<DueCallback[]> {
    return claimCallbacks(this.#db, options, now)
  }

  settleCallback(id: number, end: CallbackEnd): Promise<void> {
    return settleCallback(this.#db, id, end)
  }

  /** Queues a dead callback again. False if the callback is not dead. */
  requeueCallback(id: number): Promise<boolean> {
    return requeueCallback(this.#db, id, this.#now())
  }

  #announce(taskIds: Iterable<string>, kind?: ChangeKind): void {
    this.#changes?.announce(taskIds, kind)
  }
}

function toTaskIds(released: readonly { taskId: string }[]): string[] {
  return released.map(({ taskId }) => taskId)
}
