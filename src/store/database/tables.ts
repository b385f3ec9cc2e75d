import type { Generated } from 'kysely'

/**
 * The tables as kysely sees them. Times are Unix milliseconds of the server that wrote them, for people to read: nothing
 * is decided by them but when a callback is tried again. JSON that we only hand on is text: `jsonb` refuses NUL and lone
 * surrogates, and both occur in what models and programs print.
 */
export interface Tables {
  tasks: TaskRow
  lanes: LaneRow
  /** How far the rounds of each priority have come: see enqueue.ts. */
  rounds: { priority: number; round: number }
  /** One row: the version of the policy that is served now. */
  policy: { id: number; version: number }
  sessions: SessionRow
  attempts: AttemptRow
  results: ResultRow
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
  status: TaskWord
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
  early_stop: number | null
  /** How many attempts of one session infrastructure may spoil before the session has failed. */
  max_failures: number
  policy_version: number | null
  staleness_limit: number | null
  created_at: number
  updated_at: number
}

/** A set of labels a node must have. Sessions that need the same wait in the same lane. */
interface LaneRow {
  id: Generated<number>
  requires: string
}

interface SessionRow {
  id: string
  seq: Generated<number>
  task_id: string
  sample: number
  lane_id: number
  priority: number
  round: number
  state: 'queued' | 'leased' | 'ended'
  status: string
  /** The fencing token: it goes up whenever the session changes hands. */
  attempt: number
  failures: number
  /** Goes up with every renewal; a lease whose count stands still is lost. */
  beat: number
  node_id: string | null
  leased_at: number | null
  ended_at: number | null
  reward: number | null
  failure: string | null
  timing: string | null
}

interface AttemptRow {
  session_id: string
  attempt: number
  node_id: string | null
  ending: string
  failure: string | null
  leased_at: number | null
  ended_at: number
}

interface ResultRow {
  session_id: string
  attempt: number
  task_id: string
  path: string
  digest: string
  bytes: number
  accepted_at: number
}

interface NodeRow {
  id: string
  registration: string
  labels: string
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
