import type { Failure } from '../../model/failure.ts'
import type { SessionOrder } from '../../model/session-order.ts'
import type { SessionOutcome } from '../../model/session-outcome.ts'
import type { SessionRecord } from '../../model/session.ts'
import type { StrategySpec, TaskRequest } from '../../model/task.ts'
import type { TurnRequest } from '../../model/turn.ts'
import type { BuildSummary } from '../../trajectory/build-session.ts'

/** Loads recorded sessions, to build training data from them. */
export interface SessionBuilds extends AsyncDisposable {
  /** Throws RolloutError as `SessionReader.load` does, and `session.too-large` where a session needs too much memory. */
  load(sessionId: string): Promise<LoadedSession>
}

/**
 * A recorded session, and what is built from it. The record and the samples stay in the process that builds them; what comes
 * from there is small. Every method throws `session.too-large` when that process runs out of memory or time.
 */
export interface LoadedSession extends AsyncDisposable {
  readonly head: RecordHead
  /** To be called once. Throws what the builder throws. */
  build(job: BuildJob): Promise<BuildFacts>
  /** The main conversation after `build`, as the JSON text of a list of ChatMessage. */
  readConversation(): Promise<string>
  /** The same with the source of each message, as the JSON text of a list of TranscriptEntry. */
  readTranscript(): Promise<string>
  /** The request of the call that ended last; undefined where there is none, or it cannot be read. */
  readLastRequest(): Promise<TurnRequest | undefined>
  /** The whole record. Its size is that of the session's log. */
  readRecord(): Promise<SessionRecord>
  /** After `build`. See `writeResult` in session-result.ts. */
  writeResult(path: string, parts: { order: SessionOrder; outcome: SessionOutcome }): Promise<void>
}

/** A record without its turns. */
export interface RecordHead extends Omit<SessionRecord, 'turns'> {
  /** How many turns were recorded. */
  turnCount: number
}

export interface BuildJob {
  builder: StrategySpec
  /** What the task says about the calls to train. */
  training: TaskRequest['training']
  /** Beginnings of tool names; `BuildFacts.offered` says for each whether the model was offered such a tool. */
  toolPrefixes: readonly string[]
}

/** What a node has to know of a built session. */
export interface BuildFacts {
  summary: BuildSummary
  /** Calls that the model answered, in whole or in part. */
  answers: number
  /** Of the call that ended last: why it got no answer. Absent: it got one, or there was no call. */
  lastFailure?: Failure
  /** Whether the gateway refused calls because the call log had reached its limit. */
  isLogFull: boolean
  /** Whether the gateway refused calls because its process died repeatedly during calls of this session. */
  hasCrashedGateway: boolean
  /** For each of the tool prefixes. All true where there is no call of the main conversation. */
  offered: boolean[]
}
