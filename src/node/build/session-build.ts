import type { Failure } from '../../model/failure.ts'
import type { SessionOrder } from '../../model/session-order.ts'
import type { SessionOutcome } from '../../model/session-outcome.ts'
import type { SessionRecord } from '../../model/session.ts'
import type { StrategySpec, TaskRequest } from '../../model/task.ts'
import type { TurnRequest } from '../../model/turn.ts'
import type { BuildSummary } from '../../trajectory/build-session.ts'

/** Loads recorded sessions and builds training data from them. */
export interface SessionBuilds extends AsyncDisposable {
  /** Throws like `SessionReader.load`, and `session.too-large` if the session needs too much memory. */
  load(sessionId: string): Promise<LoadedSession>
}

/**
 * A recorded session and its samples, both in the build process; only small values leave that process. Every method throws
 * `session.too-large` if the process exceeds its memory or time limit.
 */
export interface LoadedSession extends AsyncDisposable {
  readonly head: RecordHead
  /** Must be called at most once. Throws the errors of the builder. */
  build(job: BuildJob): Promise<BuildFacts>
  /** Requires `build`. Returns the main conversation as the JSON text of a list of ChatMessage. */
  readConversation(): Promise<string>
  /** Requires `build`. Returns the main conversation as the JSON text of a list of TranscriptEntry. */
  readTranscript(): Promise<string>
  /** Returns the request of the call that ended last. Undefined if there is none, or it cannot be parsed. */
  readLastRequest(): Promise<TurnRequest | undefined>
  /** Returns the whole record, which is as large as the call log of the session. */
  readRecord(): Promise<SessionRecord>
  /** Requires `build`. See `writeResult` in session-result.ts. */
  writeResult(path: string, parts: { order: SessionOrder; outcome: SessionOutcome }): Promise<void>
}

/** A record without its turns. */
export interface RecordHead extends Omit<SessionRecord, 'turns'> {
  turnCount: number
}

export interface BuildJob {
  builder: StrategySpec
  /** The task's selection of calls to train on. */
  training: TaskRequest['training']
  /** Prefixes of tool names; `BuildFacts.offered` tells for each whether the model was offered such a tool. */
  toolPrefixes: readonly string[]
}

/** The facts about a built session that the node uses. */
export interface BuildFacts {
  summary: BuildSummary
  /** Number of calls that the model answered, in whole or in part. */
  answers: number
  /** Why the call that ended last got no answer. Absent: it got one, or there was no call. */
  lastFailure?: Failure
  /** Whether the gateway refused calls because the call log had reached its limit. */
  isLogFull: boolean
  /** Whether the gateway rejected calls because its process died repeatedly during calls of this session. */
  hasCrashedGateway: boolean
  /** One value per tool prefix. All true if the main conversation has no call. */
  offered: boolean[]
}
