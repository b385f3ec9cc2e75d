import { appendFileSync } from 'node:fs'

/**
 * All observations of a run: calls of trainers, requests between nodes and server, calls of agents to the engine, and at the
 * end the data of every route of the server. Times are milliseconds of one monotonic clock.
 */
export interface History {
  plans: readonly TaskPlan[]
  entries: readonly Entry[]
  final: FinalState
}

/** Plan of a task. */
export interface TaskPlan {
  taskId: string
  samples: number
  earlyStop?: number
  maxFailures: number
  wantsCallback: boolean
}

export type Entry = Call | Order | Report | AgentRun | Callback | Fault

/** A request of a trainer, and its outcome. */
export interface Call {
  kind: 'call'
  op: 'submit' | 'cancel' | 'retry' | 'read'
  taskId: string
  began: number
  ended: number
  /** `refused`: the server rejected it. `unknown`: no complete answer arrived, so the server may have done it. */
  outcome: 'ok' | 'refused' | 'unknown'
  code?: string
  /** Answer of a successful `cancel` or `read`. */
  view?: TaskView
  /** Number of sessions of a successful `retry`. */
  retried?: number
}

/** A node leased an attempt. */
export interface Order {
  kind: 'order'
  nodeId: string
  sessionId: string
  attempt: number
  /** Time of the server's answer, which the node may not have received. */
  at: number
}

/** A node, or the forger in its name, completed an attempt. */
export interface Report {
  kind: 'report'
  /** `node`: its own request. `replay`: the same bytes again. `forged`: a request that no correct node sends. */
  origin: 'node' | 'replay' | 'forged'
  nodeId: string
  sessionId: string
  attempt: number
  began: number
  ended: number
  answer: 'accepted' | 'duplicate' | 'refused' | 'unknown'
  /** The kind of forgery, or the reason of the rejection. */
  note?: string
}

/** A run of an agent, as recorded by the engine. The agent generated the nonce. */
export interface AgentRun {
  kind: 'run'
  nodeId: string
  sessionId: string
  nonce: string
  at: number
}

/** A callback to the trainer, and whether the trainer acknowledged it. */
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

/** The checked fields of a result. */
export interface ResultFact {
  sessionId: string
  taskId: string
  status: string
  nodeId: string | null
  reward: number | null
  /** Nonces of the agent runs whose calls it contains. */
  nonces: readonly string[]
  /** Digest of the whole result. */
  digest: string
  /** Whether the server created it for a session without a result: cancelled, or lost too often. */
  isMade: boolean
}

/** Final data of a task by every route. */
export interface FinalTask {
  taskId: string
  inline: TaskView
  stream: readonly ResultFact[]
  /** The same stream, read during the run; absent if no trainer followed it. */
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
  /** Whether the attempt ended and the session is refilled. */
  isRefilled?: boolean
}

export interface FinalState {
  tasks: readonly FinalTask[]
  /** Events received during all faults, resumed after every disconnect, and events read at the end. */
  events: { live: readonly SeenEvent[]; replayed: readonly SeenEvent[] }
  database: {
    /** Contradictions between the tables. */
    problems: readonly string[]
    results: readonly { sessionId: string; attempt: number; digest: string }[]
    attempts: readonly { sessionId: string; attempt: number; nodeId: string | null; ending: string }[]
    events: readonly string[]
  }
  /** Tasks whose end no trainer had seen, read and followed within the time limit after the last fault. */
  unfinished: readonly string[]
  /** Processes that exited unexpectedly. */
  crashes: readonly string[]
  /** Leaked processes, mounts, sandboxes and folders. */
  left: readonly string[]
}

/** Collects entries and writes each immediately to a file, so that a failed run can be analysed. */
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

/** Milliseconds of the clock of all entries. */
export function monotonic(): number {
  return Number(process.hrtime.bigint() / 1000n) / 1000
}
