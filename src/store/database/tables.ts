import type { Generated } from 'kysely'
import type { PauseMode } from '../../model/policy.ts'

/**
 * Table types for kysely. Times are Unix milliseconds of the server that wrote them, for people to read; only the retry of
 * callbacks depends on them. JSON that is only passed on has type `text`: `jsonb` refuses NUL and lone surrogates, which
 * occur in the output of models and programs.
 */
export interface Tables {
  tasks: TaskRow
  lanes: LaneRow
  quotas: { owner: string; max_queued: number | null; max_running: number | null }
  policy: PolicyRow
  sessions: SessionRow
  attempts: AttemptRow
  results: ResultRow
  artifacts: ArtifactRow
  nodes: NodeRow
  events: EventRow
  callbacks: CallbackRow
}

export type TaskState = 'running' | 'completed' | 'failed' | 'cancelled'

/** The only row: what the gateways of all nodes must apply. See PolicyState. */
interface PolicyRow {
  id: number
  version: number
  /** A trainer has set the version. */
  is_set: boolean
  is_paused: boolean
  mode: PauseMode
  change: number
}

interface TaskRow {
  id: string
  /** Order of submission, for cursors. */
  seq: Generated<number>
  body: string
  digest: string
  /** Name of the token that submitted the task; empty without tokens. */
  owner: string
  status: TaskState
  /** The task was deleted, or cancelled before it was submitted: hidden, and rejects a late submission. */
  is_tombstone: Generated<boolean>
  priority: number
  harness: string
  model: string | null
  callback_url: string | null
  /** Number of sessions, and how many of them have ended. */
  need: number
  ended: number
  /** Ended sessions whose result counts; `usable`: those of them with tokens to train on. */
  valid: number
  usable: number
  failed: number
  cancelled: number
  /** Attempts that failed because of infrastructure and were retried. */
  refills: number
  /** Number of session ends; never decreases, also when sessions are retried. */
  endings: number
  early_stop: number | null
  /** How many attempts of one session may fail because of infrastructure before the session fails. */
  max_failures: number
  policy_version: number | null
  staleness_limit: number | null
  created_at: number
  updated_at: number
  /** Null while the task runs, and after it is deleted. */
  ended_at: number | null
  /** Size of all results and artifacts, computed when the task ends. */
  bytes: Generated<number>
  /** Null unless deleted; then `need` is the number of sessions whose rows still exist. */
  deleted_at: number | null
  /** Number of the run of this task id, from 1. */
  run: Generated<number>
  /** Idempotency key of the submit that created the task. */
  submit_key: string | null
}

/** Queue of the sessions of one owner with the same required labels. */
interface LaneRow {
  id: Generated<number>
  owner: string
  requires: string
}

interface SessionRow {
  id: string
  seq: Generated<number>
  task_id: string
  sample: number
  lane_id: number
  priority: number
  /** Order among the tasks of a lane, see enqueue.ts. Zero for requeued sessions. */
  round: number
  affinity: string
  /** `resting`: the last attempt failed because of infrastructure; queued again after a delay. */
  state: 'queued' | 'leased' | 'resting' | 'ended'
  status: string
  /** Fencing token: incremented whenever a lease ends without ending the session. */
  attempt: number
  failures: number
  /** Incremented by every renewal; a lease whose count does not change is lost. */
  beat: number
  /** The node has renewed the lease, so it received the lease response. */
  is_known_there: boolean
  node_id: string | null
  leased_at: number | null
  ended_at: number | null
  /** Progress that the node last reported. */
  calls: number | null
  tokens: number | null
  /** Oldest policy version that sampled a token; null if unknown. */
  oldest_version: number | null
  /** Null until the session has ended. */
  verdict: 'valid' | 'failed' | 'cancelled' | null
  is_usable: boolean
  reward: number | null
  traces: number | null
  completions: number | null
  failure: string | null
  failure_code: string | null
  timing: string | null
}

/** Ended attempts. */
interface AttemptRow {
  session_id: string
  attempt: number
  task_id: string
  /** If the session ended with this attempt: position among the endings of the task, from 1. */
  place: number | null
  /** Null: cancelled before a node leased it. */
  node_id: string | null
  ending: 'accepted' | 'lost' | 'released' | 'cancelled'
  status: string
  failure: string | null
  reward: number | null
  timing: string | null
  leased_at: number | null
  ended_at: number
}

/** One row for each accepted attempt; `path` is empty if the attempt delivered no result. */
interface ResultRow {
  session_id: string
  attempt: number
  path: string
  digest: string
  bytes: number
}

interface ArtifactRow {
  session_id: string
  attempt: number
  path: string
  stored_path: string
  bytes: number
  digest: string
  is_cut: boolean
}

interface NodeRow {
  id: string
  registration: string
  labels: string
  /** Id of the process that joined; null if the node only registered. */
  boot_id: string | null
  metrics: string
  draining: boolean
  joined_at: number
  seen_at: number
  /** The policy state that the gateway of the node has confirmed; null: none since the node joined. */
  policy_change: number | null
  policy_version: number | null
  /** Model calls in flight, as last confirmed. */
  in_flight: Generated<number>
}

interface EventRow {
  id: Generated<number>
  /** Id of the transaction that wrote the event, see events.ts. */
  txid: number
  type: string
  task_id: string
  data: string
  ts: number
}

interface CallbackRow {
  id: Generated<number>
  task_id: string
  url: string
  state: 'waiting' | 'delivered' | 'dead'
  tries: number
  next_at: number
  last_error: string | null
}
