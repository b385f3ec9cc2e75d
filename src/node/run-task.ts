import { setTimeout as sleep } from 'node:timers/promises'
import { onAbort } from '../lib/async/until-aborted.ts'
import type { IdSource } from '../model/ids.ts'
import { judgeEnding } from '../model/refill.ts'
import type { SessionOutcome } from '../model/session-outcome.ts'
import type { TaskRequest } from '../model/task.ts'
import type { SessionNode } from './node.ts'

export interface TaskRun {
  task: TaskRequest
  /** In the order in which the sessions ended. */
  outcomes: SessionOutcome[]
  /** Number of valid sessions: these form the group whose rewards are compared. */
  valid: number
}

export interface RunTaskOptions {
  ids: IdSource
  /** Identifies the run of the sessions: only sessions of one run are compared with each other. */
  runId?: string
  /** Limits the sessions beyond `num_samples` that replace failed sessions. */
  maxRefills: number
  /** Delay before the first refill in milliseconds; doubles with each failure in a row. Default 1000. */
  backoffMs?: number
  signal: AbortSignal
  onOutcome?: (outcome: SessionOutcome) => void
}

const MAX_BACKOFF_MS = 60_000

/**
 * Runs sessions of a task on this node until `num_samples` of them are valid or the refills are used up. A failure that
 * a refill cannot avoid ends the refills of the whole task.
 */
export async function runTask(
  node: Pick<SessionNode, 'submit'>,
  task: TaskRequest,
  { ids, runId, maxRefills, backoffMs = 1000, signal, onOutcome }: RunTaskOptions,
): Promise<TaskRun> {
  const run: TaskRun = { task, outcomes: [], valid: 0 }
  let refillsLeft = maxRefills
  let failuresInRow = 0
  const runSample = async (): Promise<void> => {
    const session = node.submit({ schemaVersion: 1, sessionId: ids.next('ses'), attempt: 1, task, runId })
    const listener = onAbort(signal, () => session.cancel('The run was interrupted.'))
    const outcome = await session.outcome.finally(() => listener[Symbol.dispose]())
    run.outcomes.push(outcome)
    onOutcome?.(outcome)
    switch (judgeEnding(outcome, { refillsLeft, mayChangeMachine: false })) {
      case 'valid':
        run.valid += 1
        failuresInRow = 0
        return
      case 'failed':
        refillsLeft = 0
        return
      case 'refill':
        if (signal.aborted) return
        refillsLeft -= 1
        // A cause such as an engine restart would also fail a refill that starts at once.
        await sleep(Math.min(backoffMs * 2 ** failuresInRow++, MAX_BACKOFF_MS), undefined, { signal }).catch(() => {})
        if (!signal.aborted) await runSample()
    }
  }
  if (!signal.aborted) await Promise.all(Array.from({ length: task.num_samples }, runSample))
  return run
}
