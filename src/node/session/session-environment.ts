import { posix } from 'node:path'
import type { SessionOrder } from '../../model/session-order.ts'
import type { PrepareAction, RuntimeSpec } from '../../model/task.ts'

/** Where NVIDIA Polar's tasks keep what belongs to one session. Every sandbox has it, empty, and commands can write to it. */
const SESSION_DIR = '/polar/session'

/** Variables that name a folder of the session; in the environment of every command in a sandbox. */
export const FOLDER_VARIABLES = {
  SESSION_DIR,
  ARTIFACTS_DIR: posix.join(SESSION_DIR, 'artifacts'),
  LOGS_DIR: posix.join(SESSION_DIR, 'logs'),
  AGENT_LOG_DIR: posix.join(SESSION_DIR, 'logs/agent'),
} as const

/** Variables that name the session; they differ between sandboxes that are otherwise alike. */
export function identityVariables({ sessionId, task }: Pick<SessionOrder, 'sessionId' | 'task'>) {
  return { SESSION_ID: sessionId, TASK_ID: task.task_id }
}

/** Whether a step's result differs between sessions, so that one session cannot start from what another prepared. */
export function namesSession(action: PrepareAction): boolean {
  return action.type === 'exec' && /\b(?:SESSION_ID|TASK_ID)\b/.test(action.command)
}

/** Which step of a task names the session's folder by its path, counted from 1; undefined when none does. */
export function stepWithSessionDir({ prepare, eval_prepare: grading }: RuntimeSpec): number | undefined {
  const names = (action: PrepareAction): boolean =>
    (action.type === 'exec' ? action.command : action.target).includes(SESSION_DIR)
  const index = [...prepare, ...(grading ?? [])].findIndex(names)
  return index === -1 ? undefined : index + 1
}
