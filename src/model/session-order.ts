import * as z from 'zod'
import { SessionId } from './ids.ts'
import { TaskRequest } from './task.ts'

/** One attempt at a task, as a node is told to make it. Kept on disk until it has ended. */
export const SessionOrder = z.strictObject({
  schemaVersion: z.literal(1),
  sessionId: SessionId,
  /** Which try of the same sample it is: what an earlier one brings back late is refused. */
  attempt: z.int().min(1),
  task: TaskRequest,
  /** The `polar run` that ordered it; absent where a server did. */
  runId: SessionId.optional(),
})
export type SessionOrder = z.infer<typeof SessionOrder>
