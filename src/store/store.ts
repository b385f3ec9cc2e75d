import type { Failure } from '../model/failure.ts'
import type { SessionRecord } from '../model/session.ts'
import type { TurnSampling } from '../model/turn-sampling.ts'
import type { Delivery, Turn, TurnResponse } from '../model/turn.ts'

/** The fields of a turn that are known before the engine is called. */
export type TurnIntent = Pick<
  Turn,
  'id' | 'index' | 'dialect' | 'startedAt' | 'model' | 'stream' | 'request' | 'headers' | 'retryOf'
>

/** The fields of a turn that are known after the call ended, successfully or not. */
export interface TurnEnd {
  turnId: string
  firstTokenAt?: number
  endedAt: number
  /** Fields that the gateway set or changed in the request to the engine; empty if the engine was not called. */
  forced: Readonly<Record<string, unknown>>
  /** Absent if the request steered nothing. */
  steeredBy?: Turn['steeredBy']
  /** Absent if the engine got every field of the request, or was not called. */
  droppedFields?: Turn['droppedFields']
  /** Absent if the engine did not begin a response. */
  sampling?: TurnSampling
  /** Absent if there is no usable response. Partial responses are stored together with `failure`. */
  response?: TurnResponse
  failure?: Failure
}

/**
 * Records the turns of one session, in the order of the methods below. Appends never throw: a failed write sets `broken`, the
 * session is incomplete from then on, and the harness's call continues.
 */
export interface SessionLog {
  readonly sessionId: string
  /** The first failed write; undefined if none failed. */
  readonly broken: Failure | undefined
  /** Number of turns in the log, including those of an earlier writer: the index of the next one. */
  readonly turns: number
  /** Size of the log, including bytes of an earlier writer. */
  readonly bytes: number
  /** Queues the record; written before any later `appendEnd` of this log resolves. */
  appendIntent(intent: TurnIntent): void
  /** Resolves when the record survives `kill -9` of this process, or when `broken` is set. */
  appendEnd(end: TurnEnd): Promise<void>
  /** Records whether the harness got the whole response. Queues the record. */
  appendDelivery(turnId: string, delivery: Delivery): void
  /** Flushes to the disk and writes the close record, which states whether the log is complete. Idempotent. */
  close(): Promise<void>
}

export interface SessionOpening {
  id: string
  /** Unix milliseconds. */
  createdAt: number
  origin: Readonly<Record<string, unknown>>
  /**
   * The process that wrote this log has ended, and its supervisor started another one to continue it. Every response that a
   * harness has received was stored before, so only calls in flight are lost: they are recorded as failed, and the log can
   * still be complete.
   */
  isContinued?: boolean
}

/** All recorded sessions of one directory. */
export interface SessionStore extends AsyncDisposable {
  /** Does not throw if the directory is not writable: the returned log is `broken`. */
  open(session: SessionOpening): Promise<SessionLog>
}

export interface LoadOptions {
  /** Skip damaged records, with reasons, instead of throwing `store.corrupt`. */
  salvage?: boolean
}

export interface SessionOrigin {
  id: string
  origin: SessionRecord['origin']
}

/** Reads call logs. A truncated last record is not an error; damage before the end is. */
export interface SessionReader {
  /** Ids of all sessions, oldest first. */
  list(): Promise<string[]>
  /** The same sessions with the origin from their opening record; empty if a log cannot be read. */
  listOrigins(): Promise<SessionOrigin[]>
  /**
   * Throws RolloutError `store.corrupt`, `store.newer-schema` or `store.unavailable` (no such session). Turns are ordered by
   * `index`. Their id arrays may be views of the same memory: do not write to them.
   */
  load(sessionId: string, options?: LoadOptions): Promise<SessionRecord>
}
