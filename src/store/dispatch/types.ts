import type { NodeRegistrationRequest } from '../../model/node.ts'
import type { SessionOrder } from '../../model/session-order.ts'
import type { SessionProgress, SessionStatus } from '../../model/session.ts'
import type { TaskRequest } from '../../model/task.ts'
import type { TaskState } from '../database/tables.ts'

export interface Submission {
  task: TaskRequest
  /** Labels that a node must have to lease sessions of the task. */
  requires?: readonly string[]
  /** Keys of what should be cached on the node, such as `image:swe-42`: a preference, not a requirement. */
  affinity?: readonly string[]
  /** How many attempts of one session may fail because of infrastructure before the session fails. Default 4. */
  maxFailures?: number
  /** Policy version that the task is made for; the task is cancelled once the current version exceeds it by more than `stalenessLimit`. */
  policyVersion?: number
  stalenessLimit?: number
}

export interface EnqueueOutcome {
  taskId: string
  /**
   * `same`: the task exists with the same contents. `conflict`: the task exists with different contents. `stale`: the
   * policy version of the task is too old. `cancelled`: the task was cancelled before it was submitted. `deleted`: the task
   * existed and was deleted. `over-quota`: reported for every task of the batch; no task was created.
   */
  kind: 'created' | 'same' | 'conflict' | 'stale' | 'cancelled' | 'deleted' | 'over-quota'
  /** With `created`: a finished task had this id, and has this new id now. */
  archivedAs?: string
}

export interface EnqueueOptions {
  owner?: string
  /** Idempotency key of the submit: a repeated submit finds the task that it created, also after the task finished. */
  key?: string
  /** A finished task is archived and its id used for a new run, unless `key` is its own. Default: the finished task stays. */
  isRerun?: boolean
}

/** One attempt that a node holds. The attempt number is the fencing token. */
export interface Lease {
  sessionId: string
  attempt: number
}

export interface LeasedOrder {
  order: SessionOrder
  /** The node must renew the lease within this time, and should renew it three times as often. */
  leaseMs: number
}

/** `unknown`: the node must join. `replaced`: another process joined under the same node id; this process must stop. */
export type NodeMembership = 'member' | 'draining' | 'unknown' | 'replaced'

/** What the gateway of a node has applied. */
export interface PolicyConfirmation {
  bootId: string
  change: number
  /** Null: no version is set. */
  version: number | null
  /** Model calls in flight. */
  inFlight: number
}

export interface LeaseRequest {
  freeSlots: number
  /** Absent: the labels that the node joined with. */
  labels?: readonly string[]
  /** Keys of what is cached on the node. */
  affinity?: readonly string[]
  /**
   * All attempts that the node holds. An attempt that was leased to the node, is not listed and was never renewed did not
   * reach the node, and is released. Only for nodes that send one lease request at a time. Absent: nothing is released.
   */
  holding?: readonly Lease[]
  /** Boot id of the requesting process; a replaced process gets no lease. Absent: not checked. */
  bootId?: string
}

export interface LeaseResponse {
  orders: LeasedOrder[]
  node: NodeMembership
}

export interface Renewal extends Lease {
  /** Shown to people; nothing is decided by it. */
  status?: SessionStatus
  progress?: SessionProgress
}

export interface RenewalOutcome extends Lease {
  /** All but `held` mean: stop the session. `accepted`: its result is stored. `lost`: leased to another node, or unknown. */
  kind: 'held' | 'accepted' | 'cancelled' | 'lost'
}

export interface RenewResponse {
  outcomes: RenewalOutcome[]
  node: NodeMembership
}

export interface JoinRequest {
  registration: NodeRegistrationRequest
  labels: readonly string[]
  /** Id of the joining process. If it differs from the previous one, attempts that `holding` does not list are lost. */
  bootId: string
  /** Boot id of the process that is replaced, as reported by an earlier `taken`. */
  replaces?: string
  /** Attempts that are running, or finished and not delivered. */
  holding: readonly Lease[]
}

export type JoinResponse =
  | {
      kind: 'joined'
      /** One for each entry of `holding`. */
      outcomes: RenewalOutcome[]
      /** Attempts of the previous process that were requeued or failed. */
      lost: number
    }
  /** Another process holds the node id and was not named in `replaces`. Nothing has changed. */
  | { kind: 'taken'; bootId: string }

/** Location of a result file. The file is durable before the reference is passed to `accept`. */
export interface ResultReference {
  path: string
  digest: string
  bytes: number
}

/** A file of a session: `path` is its name in the session, `storedPath` its path in the file store. */
export interface ArtifactReference {
  path: string
  storedPath: string
  bytes: number
  digest: string
  isCut: boolean
}

export type Acceptance =
  | { kind: 'accepted'; isRefilled: boolean; taskStatus: TaskState }
  /** The same result was accepted before; the node may delete its copy. */
  | { kind: 'duplicate' }
  | { kind: 'refused'; reason: 'stale' | 'cancelled' | 'unknown-session' }

export interface TaskUpdate {
  priority?: number
  /** Null: no early stop. A value that is already reached ends the task at once. */
  earlyStop?: number | null
}

/** `over`: only a running task can be updated. */
export type UpdateOutcome = 'updated' | 'over' | 'unknown-task'

export type RetriedStatus = 'ERROR' | 'TIMEOUT' | 'CANCELLED'

/** `stale`: the policy version of the task is too old. `enough`: early stop is reached and would end the sessions at once. */
type RetryRefusal = 'stale' | 'over-quota' | 'enough'

export type TaskRetry =
  | { kind: 'retried'; sessions: number; taskStatus: TaskState }
  | { kind: RetryRefusal | 'unknown-task' }

/** `stands`: the agent caused the end of the session, so its result is final. */
export interface SessionRetry {
  kind: 'retried' | RetryRefusal | 'under-way' | 'stands' | 'unknown-session'
}

/** Ages in milliseconds, by the clock of the server that wrote the rows. Absent: rows of that kind are kept. */
export interface PruneLimits {
  eventsOlderThanMs?: number
  /** Tombstones of tasks that were cancelled before they were submitted. */
  tombstonesOlderThanMs?: number
  /** Tombstones of deleted tasks, which reject late submissions. */
  deletedOlderThanMs?: number
  deliveredCallbacksOlderThanMs?: number
}

export type DeleteOutcome =
  | { kind: 'deleted'; sessions: number; bytes: number }
  /** Only a finished task can be deleted. */
  | { kind: 'running' }
  | { kind: 'unknown-task' }

/** Limits on finished tasks. A task with a pending callback is always kept. */
export interface RetentionPolicy {
  /** Tasks that ended longer ago are deleted. Absent: no limit by age. */
  olderThanMs?: number
  /** Limit on the results and artifacts of finished tasks; beyond it the oldest are deleted. Absent: no limit by size. */
  maxBytes?: number
  /** A task that ended more recently is not deleted because of `maxBytes`: its results may not have been read yet. */
  keepAtLeastMs: number
}

/** Deleted rows, and the files that no row refers to any more. */
export interface ClearedRows {
  taskId: string
  paths: string[]
}

/**
 * Kind of a task change. `moved`: the status of a session changed. `ended`: a session may also have ended. `over`: anything
 * may have changed; the task itself may have ended.
 */
export type ChangeKind = 'moved' | 'ended' | 'over'

/** `all`: after a lost connection any task may have changed. */
export type ChangeListener = (taskIds: ReadonlySet<string> | 'all', kind: ChangeKind) => void

export interface DueCallback {
  id: number
  taskId: string
  url: string
  /** Number of tries, the current one included. */
  tries: number
}

export type CallbackEnd =
  | { kind: 'delivered' }
  | { kind: 'again'; at: number; error: string }
  /** Nothing was sent: due again at that time, and the try is not counted. */
  | { kind: 'postponed'; at: number }
  /** Not retried, and kept for an operator to inspect. */
  | { kind: 'dead'; error: string }
