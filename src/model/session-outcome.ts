import * as z from 'zod'
import { arrayOf, recordOf } from '../lib/json/list-of.ts'
import { Failure } from './failure.ts'
import { SessionId } from './ids.ts'
import { EvalResult } from './reward.ts'
import { SessionStatus, SessionTiming } from './session.ts'

/** How the agent of a session ended. Absent from an outcome when it was not the agent's own doing. */
export const AgentEnding = z.object({
  /** By itself, well or not; or because its time, or its turns or context, had run out. */
  kind: z.enum(['completed', 'failed', 'timeout', 'truncated']),
  /** Null when a signal ended it. */
  exitCode: z.int().nullable(),
})
export type AgentEnding = z.infer<typeof AgentEnding>

/** What was made of the captured calls; the tokens themselves stay where they are, in the session's log. */
export const BuildCounts = z.object({
  builder: z.string(),
  turns: z.int(),
  calls: z.int(),
  rows: z.int(),
  trainedCalls: z.int(),
  tokens: z.object({ sampled: z.int(), trained: z.int(), excluded: z.int() }),
  /** Calls that are trained nowhere, by reason; absent in outcomes of earlier versions. */
  excludedCalls: recordOf(z.int()).optional(),
})
export type BuildCounts = z.infer<typeof BuildCounts>

/** All that is known of a session once it is over, but for its tokens. Stored beside its log. */
export const SessionOutcome = z.object({
  schemaVersion: z.literal(1),
  sessionId: SessionId,
  taskId: z.string(),
  /** The `polar run` that ordered it; absent where a server did, and in folders of versions without run ids. */
  runId: SessionId.optional(),
  attempt: z.int().min(1),
  nodeId: z.string(),
  status: SessionStatus,
  failure: Failure.optional(),
  ending: AgentEnding.optional(),
  /** Absent: there is none, which is not the same as a reward of zero. */
  grade: EvalResult.optional(),
  counts: BuildCounts.optional(),
  timing: SessionTiming,
  /** What people should know of it, though it is no failure; absent: nothing. */
  warnings: arrayOf(z.string()).optional(),
  /** Files that were kept, below the session's folder. */
  artifacts: arrayOf(z.object({ path: z.string(), bytes: z.int(), isCut: z.boolean() })),
  /** Unix milliseconds. */
  endedAt: z.number(),
})
export type SessionOutcome = z.infer<typeof SessionOutcome>
