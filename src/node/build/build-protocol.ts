import type { Failure } from '../../model/failure.ts'
import type { SessionOrder } from '../../model/session-order.ts'
import type { SessionOutcome } from '../../model/session-outcome.ts'
import type { BuildJob } from './session-build.ts'

/** What a node asks a build process for. A process has one session at a time. */
export type BuildRequest =
  | { kind: 'load'; sessionId: string }
  | { kind: 'build'; job: BuildJob }
  | { kind: 'conversation' }
  | { kind: 'transcript' }
  | { kind: 'last-request' }
  | { kind: 'record' }
  | { kind: 'write'; path: string; parts: { order: SessionOrder; outcome: SessionOutcome } }
  /** Gives up the session, so that the process can take another. */
  | { kind: 'forget' }

export interface BuildReply {
  value?: unknown
  /** Why there is no value. */
  failure?: Failure
}
