import type { Failure } from '../../model/failure.ts'
import type { LoadedSession } from './session-build.ts'

/** The methods of a loaded session that a node calls in a build process. */
export type SessionMethod = Exclude<keyof LoadedSession, 'head' | typeof Symbol.asyncDispose>

/** Requests of a node to a build process. A process has at most one session at a time. */
export type BuildRequest =
  | { kind: 'load'; sessionId: string }
  | { kind: 'call'; method: SessionMethod; args: readonly unknown[] }
  /** Releases the session, so that the process can load another. */
  | { kind: 'release' }

export interface BuildReply {
  value?: unknown
  /** Set instead of a value if the request failed. */
  failure?: Failure
}
