import type { Generated } from 'kysely'

/**
 * The tables as kysely sees them. Times are Unix milliseconds of the server that wrote them, for people to read: nothing
 * is decided by them but when a callback is tried again. JSON that we only hand on is text: `jsonb` refuses NUL and lone
 * surrogates, and both occur in what models and programs print.
 */
export interface Tables {
  tasks: TaskRow
  lanes: LaneRow
  /** Of owners that have one. */
  quotas: { owner: string; max_queued: number | null; max_running: number | null }
  /** One row: the version of the policy that is served now. */
  policy: { id: number; version: number }
  sessions: SessionRow
  attempts: AttemptRow
  results: ResultRow
  artifacts: ArtifactRow
  nodes: NodeRow
  events: EventRow
  callbacks: CallbackRow
}

export type TaskWord = 'running' | 'completed' | 'failed' | 'cancelled'

interface TaskRow {
  id: string
  /** In order of submission, for cursors. */
  seq: Generated<number>
  body: string
  digest: string
  /** Who submitted it; empty where nobody has a name. */
  owner: string
  status: TaskWord
  /** It was deleted, or cancelled before it came, and is there to refuse it when it comes. Nobody is shown it. */
  is_tombstone: Generated<boolean>
  priority: number
  harness: string
  model: string | null
  callback_url: string | null
  /** Sessions asked for, and how many of them are over. */
  need: number
  ended: number
  /** Of those that are over: the policy's own endings; of these, the ones with something to train on. */
  valid: number
  usable: number
  failed: number
  cancelled: number
  /** Attempts that infrastructure spoilt and that were made again. */
  refills: number
  /** How often a session of it ended; never goes down, also when one is made again. */
  endings: number
  early_stop: number | null
  /** How many attempts of one session infrastructure may spoil before the session has failed. */
  max_failures: number
  policy_version: number | null
  staleness_limit: number | null
  created_at: number
  updated_at: number
  /** Null while it runs, and once it is deleted. */
  ended_at: number | null
  /** Of its results and artifacts, counted when it ends. */
  bytes: Generated<number>
  /** Null unless it was. It has `need` sessions left to be cleared away. */
  deleted_at: number | null
  /** Which run of its id it is, from 1. */
  run: Generated<number>
  /** The idempotency key of the submit that created it; null when that had none. */
  submit_key: string | null
}

/** An owner and a set of labels a node must have. Sessions with the same wait in the same lane. */
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
  /** Its place among those of other tasks: see enqueue.ts. Zero for what is given out again. */
  round: number
  affinity: string
  /** `resting`: infrastructure spoilt it, and it is queued again in a while. */
  state: 'queued' | 'leased' | 'resting' | 'ended'
  status: string
  /** The fencing token: it goes up whenever the session changes hands. */
  attempt: number
  failures: number
  /** Goes up with every renewal; a lease whose count stands still is lost. */
  beat: number
  /** The node has renewed it, so the answer that gave it out was not lost. */
  is_known_there: boolean
  node_id: string | null
  leased_at: number | null
  ended_at: number | null
  /** As the node last said. */
  calls: number | null
  tokens: number | null
  /** Of one that is over. */
  verdict: 'valid' | 'failed' | 'cancelled' | null
  is_usable: boolean
  reward: number | null
  traces: number | null
  completions: number | null
  failure: string | null
  failure_code: string | null
  timing: string | null
}

/** Every attempt that is over, and how. */
interface AttemptRow {
  session_id: string
  attempt: number
  task_id: string
  /** If its session ended with it: the how many-th ending of the task that was, for good. */
  place: number | null
  /** Null: it was cancelled before anybody had it. */
  node_id: string | null
  ending: 'accepted' | 'lost' | 'released' | 'cancelled'
  status: string
  failure: string | null
  reward: number | null
  timing: string | null
  leased_at: number | null
  ended_at: number
}

/** Of every attempt that was accepted; its path is empty when it brought nothing. */
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
  /** Of the process that joined; null for one that did not say. */
  boot_id: string | null
  metrics: string
  draining: boolean
  joined_at: number
  seen_at: number
}

interface EventRow {
  id: Generated<number>
  /** Of the transaction that wrote it: see events.ts. */
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
