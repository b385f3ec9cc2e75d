import type { Failure } from '../model/failure.ts'
import type { SessionRecord } from '../model/session.ts'
import type { TurnSampling } from '../model/turn-sampling.ts'
import type { Delivery, Turn, TurnResponse } from '../model/turn.ts'

/** What is known of a turn before the engine is called. */
export type TurnIntent = Pick<
  Turn,
  'id' | 'index' | 'dialect' | 'startedAt' | 'model' | 'stream' | 'request' | 'headers' | 'retryOf'
>

/** What is known once the call is over, however it ended. */
export interface TurnEnd {
  turnId: string
  firstTokenAt?: number
  endedAt: number
  /** What the gateway set or changed on the way to the engine; empty when the call never got that far. */
  forced: Readonly<Record<string, unknown>>
  /** Absent when the request steered nothing. */
  steeredBy?: Turn['steeredBy']
  /** Absent when the engine got every field of the request, or was never asked. */
  droppedFields?: Turn['droppedFields']
  /** Absent when the engine never began to answer. */
  sampling?: TurnSampling
  /** Absent when nothing usable came back. Partial answers are kept, with `failure` beside them. */
  response?: TurnResponse
  failure?: Failure
}

/**
 * Where one session's turns go, in the order of the calls below. Appends never throw: a log that cannot be written is
 * remembered in `broken`, the session is incomplete from then on, and the harness's call goes on.
 */
export interface SessionLog {
  readonly sessionId: string
  /** The first write that failed; undefined while all is well. */
  readonly broken: Failure | undefined
  /** Turns begun in this log so far, those of an earlier writer included: the index of the next one. */
  readonly turns: number
  /** Bytes that the log takes, those of an earlier writer included. */
  readonly bytes: number
  /** Queued at once; on disk before any later `appendEnd` of this log resolves. */
  appendIntent(intent: TurnIntent): void
  /** Resolves when the record would survive `kill -9` of this process (or has failed and `broken` says so). */
  appendEnd(end: TurnEnd): Promise<void>
  /** Whether the harness got the whole answer. Queued; nobody waits for it. */
  appendDelivery(turnId: string, delivery: Delivery): void
  /** Flushes to the disk, and states that nothing is missing, unless something is. Idempotent. */
  close(): Promise<void>
}

export interface SessionOpening {
  id: string
  /** Unix milliseconds. */
  createdAt: number
  origin: Readonly<Record<string, unknown>>
  /**
   * The process that wrote this log has ended, and its supervisor lets another one go on with it. Every answer whose end
   * a harness has seen was stored before, so only calls in flight are lost: they are recorded as failed, and the log can
   * still be complete.
   */
  isContinued?: boolean
}

/** All recorded sessions of one directory. */
export interface SessionStore extends AsyncDisposable {
  /** Never throws for an unwritable place: the log comes back already `broken`. */
  open(session: SessionOpening): Promise<SessionLog>
}

export interface LoadOptions {
  /** Skip what is damaged and give what is whole, with reasons, instead of throwing `store.corrupt`. */
  salvage?: boolean
}

/** Reading side. A record that was cut off is not an error; damage in the middle is. */
export interface SessionOrigin {
  id: string
  origin: SessionRecord['origin']
}

export interface SessionReader {
  /** Ids of all sessions, the oldest first. */
  list(): Promise<string[]>
  /** The same sessions with what their logs begin with; the origin is empty where a log cannot be read. */
  listOrigins(): Promise<SessionOrigin[]>
  /**
   * Throws RolloutError `store.corrupt`, `store.newer-schema` or `store.unavailable` (no such session). Turns come in the
   * order of their `index`. Their id arrays may be views of the same memory: read them, do not write to them.
   */
  load(sessionId: string, options?: LoadOptions): Promise<SessionRecord>
}
