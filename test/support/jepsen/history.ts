import { appendFileSync } from 'node:fs'

/**
 * All that is known of a run, from those who saw it: the trainers who called, the wire between nodes and server, the
 * engine that the agents called, and at the end every way there is to read the server. Times are milliseconds of one
 * clock that never jumps.
 */
export interface History {
  plans: readonly TaskPlan[]
  entries: readonly Entry[]
  final: FinalState
}

/** A task as it was to be asked for. */
export interface TaskPlan {
  taskId: string
  samples: number
  earlyStop?: number
  maxFailures: number
  wantsCallback: boolean
}

export type Entry = Call | Order | Report | AgentRun | Callback | Fault

/** What a trainer asked for, and whether it knows what came of it. */
export interface Call {
  kind: 'call'
  op: 'submit' | 'cancel' | 'retry' | 'read'
  taskId: string
  began: number
  ended: number
  /** `refused`: the server said no. `unknown`: no whole answer came, so it may have happened. */
  outcome: 'ok' | 'refused' | 'unknown'
  code?: string
  /** Of a `cancel` or `read` that was answered. */
  view?: TaskView
  /** Of a `retry` that was answered. */
  retried?: number
}

/** The server gave an attempt to a node. */
export interface Order {
  kind: 'order'
  nodeId: string
  sessionId: string
  attempt: number
  /** When the server had answered. The node need not have heard of it. */
  at: number
}

/** A node, or somebody in its name, said that an attempt is over. */
export interface Report {
  kind: 'report'
  /** `node`: its own. `replay`: the same bytes once more. `forged`: what no honest node would send. */
  origin: 'node' | 'replay' | 'forged'
  nodeId: string
  sessionId: string
  attempt: number
  began: number
  ended: number
  answer: 'accepted' | 'duplicate' | 'refused' | 'unknown'
  /** What was forged, or why it was refused. */
  note?: string
}

/** An agent really ran: the engine heard from it. It made up the nonce itself. */
export interface AgentRun {
  kind: 'run'
  nodeId: string
  sessionId: string
  nonce: string
  at: number
}

/** The trainer was called back, and whether it said that it had understood. */
export interface Callback {
  kind: 'callback'
  taskId: string
  at: number
  isAnswered: boolean
  view: Pick<TaskView, 'status' | 'results'>
}

export interface Fault {
  kind: 'fault'
  at: number
  what: string
}

export type TaskStatusWord = 'running' | 'completed' | 'failed' | 'cancelling' | 'cancelled'

export interface TaskView {
  status: TaskStatusWord
  total: number
  completed: number
  results: readonly ResultFact[]
}

/** What matters of a result. */
export interface ResultFact {
  sessionId: string
  taskId: string
  status: string
  nodeId: string | null
  reward: number | null
  /** Made up by the agent runs whose calls are in it. */
  nonces: readonly string[]
  /** Of all of it. */
  digest: string
  /** The server wrote it itself, for a session that brought none: cancelled, or lost too often. */
  isMade: boolean
}

/** The same by every route. */
export interface FinalTask {
  taskId: string
  inline: TaskView
  stream: readonly ResultFact[]
  /** The same stream, by whoever read it all along; absent where nobody did. */
  followed?: readonly ResultFact[]
  bySession: readonly ResultFact[]
  references: readonly { sessionId: string; attempt: number; digest: string; isWhole: boolean }[]
  sessions: readonly FinalSession[]
  counts: { samples: number; completed: number; valid: number; usable: number; cancelled: number; errored: number }
}

export interface FinalSession {
  sessionId: string
  sample: number
  status: string
  attempt: number
  nodeId: string | null
  reward: number | null
}

export interface SeenEvent {
  id: string
  type: string
  taskId?: string
  sessionId?: string
  attempt?: number
  status?: string
  /** The attempt is over, but the session is not: it is made again. */
  isRefilled?: boolean
}

export interface FinalState {
  tasks: readonly FinalTask[]
  /** As they were heard through all faults, going on after every cut, and as they are read in one go at the end. */
  events: { live: readonly SeenEvent[]; replayed: readonly SeenEvent[] }
  database: {
    /** What of the tables disagrees with itself. */
    problems: readonly string[]
    results: readonly { sessionId: string; attempt: number; digest: string }[]
    attempts: readonly { sessionId: string; attempt: number; nodeId: string | null; ending: string }[]
    events: readonly string[]
  }
  /** Tasks of which a trainer had not seen, read and followed the end in time, long after all was healed. */
  unfinished: readonly string[]
  /** Processes that ended by themselves. */
  crashes: readonly string[]
  /** Processes, mounts, sandboxes and folders that should be gone. */
  left: readonly string[]
}

/** Keeps what happened, and writes it down at once: it must be there to read when the run fails. */
export class HistoryLog {
  readonly entries: Entry[] = []
  readonly path: string

  constructor(path: string) {
    this.path = path
  }

  add(entry: Entry): void {
    this.entries.push(entry)
    this.write(entry)
  }

  write(value: unknown): void {
    appendFileSync(this.path, `${JSON.stringify(value)}\n`)
  }
}

/** Milliseconds of the clock that all entries are written by. */
export function monotonic(): number {
  return Number(process.hrtime.bigint() / 1000n) / 1000
}
