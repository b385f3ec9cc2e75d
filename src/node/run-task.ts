import { setTimeout as sleep } from 'node:timers/promises'
import { failureClasses } from '../model/failure.ts'
import type { IdSource } from '../model/ids.ts'
import type { SessionOutcome } from '../model/session-outcome.ts'
import type { TaskRequest } from '../model/task.ts'
import type { SessionNode } from './node.ts'

export interface TaskRun {
  task: TaskRequest
  /** In the order in which they ended. */
  outcomes: SessionOutcome[]
  /** Sessions whose ending is the policy's doing: what a group is compared by. */
  valid: number
}

export interface RunTaskOptions {
  ids: IdSource
  /** Names the run that the sessions belong to: only sessions of one run are compared with each other. */
  runId?: string
  /** Sessions beyond `num_samples` that may take the place of those that were not the policy's doing. */
  maxRefills: number
  /** How long to wait before the first that makes up for another; twice as long for each failure in a row. Absent: 1000. */
  backoffMs?: number
  signal: AbortSignal
  onOutcome?: (outcome: SessionOutcome) => void
}

/** Whether a session counts: it ended well, or for a reason of its own. */
export function isValid({ failure }: SessionOutcome): boolean {
  return failure === undefined || failureClasses[failure.code].blame === 'policy'
}

/**
 * Runs the sessions of a task until as many as it asks for are valid, or no more may be begun. A failure of ours is made
 * up for by another session; one of the task itself would only happen again, so then none is.
 */
export async function runTask(
  node: Pick<SessionNode, 'submit'>,
  task: TaskRequest,
  { ids, runId, maxRefills, backoffMs = 1000, signal, onOutcome }: RunTaskOptions,
): Promise<TaskRun> {
  const run: TaskRun = { task, outcomes: [], valid: 0 }
  let refillsLeft = maxRefills
  let isHopeless = false
  let failuresInRow = 0
  const one = async (): Promise<void> => {
    const session = node.submit({
      schemaVersion: 1,
      sessionId: ids.next('ses'),
      attempt: 1,
      task,
      ...(runId === undefined ? {} : { runId }),
    })
    const cancel = (): void => session.cancel('The run was interrupted.')
    signal.addEventListener('abort', cancel, { once: true })
    const outcome = await session.outcome.finally(() => signal.removeEventListener('abort', cancel))
    run.outcomes.push(outcome)
    onOutcome?.(outcome)
    if (isValid(outcome)) {
      run.valid += 1
      failuresInRow = 0
      return
    }
    isHopeless ||= !mayHelp(outcome)
    if (signal.aborted || isHopeless || refillsLeft === 0) return
    refillsLeft -= 1
    // What ails us, such as an engine that is being restarted, ails the next as well if it comes at once.
    await pause(Math.min(backoffMs * 2 ** failuresInRow++, LONGEST_BACKOFF_MS), signal)
    if (!signal.aborted) await one()
  }
  if (!signal.aborted) await Promise.all(Array.from({ length: task.num_samples }, one))
  return run
}

const LONGEST_BACKOFF_MS = 60_000

function pause(ms: number, signal: AbortSignal): Promise<void> {
  return sleep(ms, undefined, { signal }).catch(() => {})
}

/** Another session may fare better; one with the same mistake, or without what is missing here, would not. */
function mayHelp({ failure }: SessionOutcome): boolean {
  return failure === undefined || failureClasses[failure.code].retryable
}
