import type { Failure } from '../../model/failure.ts'
import type { SessionOrder } from '../../model/session-order.ts'
import type { SessionOutcome } from '../../model/session-outcome.ts'
import type { BuildJob } from './session-build.ts'

/** Requests of a node to a build process. A process has at most one session at a time. */
export type BuildRequest =
  | { kind: 'load'; sessionId: string }
  | { kind: 'build'; job: BuildJob }
  | { kind: 'conversation' }
  | { kind: 'transcript' }
  | { kind: 'last-request' }
  | { kind: 'record' }
  | { kind: 'write'; path: string; parts: { order: SessionOrder; outcome: SessionOutcome } }
  /** Releases the session, so that the process can load another. */
  | { kind: 'release' }

export interface BuildReply {
  value?: unknown
  /** Set instead of a value if the request failed. */
  failure?: Failure
}
