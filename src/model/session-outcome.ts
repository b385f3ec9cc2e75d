import * as z from 'zod'
import { arrayOf, recordOf } from '../lib/json/list-of.ts'
import { Failure } from './failure.ts'
import { SessionId } from './ids.ts'
import { EvalResult } from './reward.ts'
import { SessionStatus, SessionTiming } from './session.ts'

/** How the harness of a session ended. Absent from an outcome if the agent did not cause the end. */
export const AgentEnding = z.object({
  /** On its own with or without success, by its time limit, or by its limit of turns or context. */
  kind: z.enum(['completed', 'failed', 'timeout', 'truncated']),
  /** Null if a signal ended it. */
  exitCode: z.int().nullable(),
})
export type AgentEnding = z.infer<typeof AgentEnding>

/** Counts of the built training data. The tokens stay in the session's log. */
export const BuildCounts = z.object({
  builder: z.string(),
  turns: z.int(),
  calls: z.int(),
  rows: z.int(),
  trainedCalls: z.int(),
  tokens: z.object({ sampled: z.int(), trained: z.int(), excluded: z.int() }),
  /** Number of calls without a trained token, by reason; absent in outcomes of earlier versions. */
  excludedCalls: recordOf(z.int()).optional(),
  /** Oldest policy version of a trained token; absent if unknown, and in outcomes of earlier versions. */
  oldestVersion: z.int().optional(),
})
export type BuildCounts = z.infer<typeof BuildCounts>

/** Result of a session without its tokens. Stored beside its log. */
export const SessionOutcome = z.object({
  schemaVersion: z.literal(1),
  sessionId: SessionId,
  taskId: z.string(),
  /** Id of the `polar run` that created it; absent if a server did, and in folders of versions without run ids. */
  runId: SessionId.optional(),
  attempt: z.int().min(1),
  nodeId: z.string(),
  status: SessionStatus,
  failure: Failure.optional(),
  ending: AgentEnding.optional(),
  /** Absent if not graded, which is not a reward of zero. */
  grade: EvalResult.optional(),
  counts: BuildCounts.optional(),
  timing: SessionTiming,
  /** Warnings for people; absent if there are none. */
  warnings: arrayOf(z.string()).optional(),
  /** Stored files, relative to the session's folder. */
  artifacts: arrayOf(z.object({ path: z.string(), bytes: z.int(), isCut: z.boolean() })),
  /** Unix milliseconds. */
  endedAt: z.number(),
})
export type SessionOutcome = z.infer<typeof SessionOutcome>
