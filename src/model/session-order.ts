import * as z from 'zod'
import { SessionId } from './ids.ts'
import { TaskRequest } from './task.ts'

/** Session spec: one attempt at a task for a node. Stored on disk until the session has ended. */
export const SessionOrder = z.strictObject({
  schemaVersion: z.literal(1),
  sessionId: SessionId,
  /** Number of the attempt at the same sample. Late results of earlier attempts are rejected. */
  attempt: z.int().min(1),
  task: TaskRequest,
  /** Id of the `polar run` that created it; absent if a server did. */
  runId: SessionId.optional(),
})
export type SessionOrder = z.infer<typeof SessionOrder>
