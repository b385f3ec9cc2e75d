import { posix } from 'node:path'
import type { SessionOrder } from '../../model/session-order.ts'
import type { PrepareAction, RuntimeSpec } from '../../model/task.ts'

/** The folder that tasks for NVIDIA Polar use for files of a session. It exists in every sandbox, empty and writable. */
const SESSION_DIR = '/polar/session'

/** Variables with folders of the session, in the environment of every command in a sandbox. */
export const FOLDER_VARIABLES = {
  SESSION_DIR,
  ARTIFACTS_DIR: posix.join(SESSION_DIR, 'artifacts'),
  LOGS_DIR: posix.join(SESSION_DIR, 'logs'),
  AGENT_LOG_DIR: posix.join(SESSION_DIR, 'logs/agent'),
} as const

/** Variables that identify the session; they differ between sandboxes that are otherwise equal. */
export function identityVariables({ sessionId, task }: Pick<SessionOrder, 'sessionId' | 'task'>) {
  return { SESSION_ID: sessionId, TASK_ID: task.task_id }
}

/** Whether a prepare step depends on the session, so that its result cannot be reused by other sessions. */
export function namesSession(action: PrepareAction): boolean {
  return action.type === 'exec' && /\b(?:SESSION_ID|TASK_ID)\b/.test(action.command)
}

/** The number, from 1, of the first step that contains the path of the session folder. Undefined if there is none. */
export function stepWithSessionDir({ prepare, eval_prepare: grading }: RuntimeSpec): number | undefined {
  const names = (action: PrepareAction): boolean =>
    (action.type === 'exec' ? action.command : action.target).includes(SESSION_DIR)
  const index = [...prepare, ...(grading ?? [])].findIndex(names)
  return index === -1 ? undefined : index + 1
}
