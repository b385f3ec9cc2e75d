import type { RetentionPolicy } from '../../store/dispatch/port.ts'
import type { ServerDeps } from '../deps.ts'

type DeletionDeps = Pick<ServerDeps, 'dispatch' | 'files' | 'logger'>

/**
 * Takes away what deleted tasks have left, a little at a time, so that nobody else waits for it: first rows, then the files
 * they named. Whatever ends in between leaves files that no row names, which are swept; never a row without its file.
 */
export async function clearDeletedTasks(
  { dispatch, files, logger }: DeletionDeps,
  { taskId, signal }: { taskId?: string; signal: AbortSignal },
): Promise<void> {
  while (!signal.aborted) {
    const cleared = await dispatch.clearDeleted(taskId)
    if (cleared === undefined) return
    try {
      await files.remove(cleared.paths)
    } catch (error) {
      logger.warn(
        { err: error, taskId: cleared.taskId },
        'files of a deleted task could not be removed and will be swept',
      )
    }
  }
}

/** What is not to be kept any longer, and what a crash or a hurry left of earlier ones. */
export async function retireTasks(
  deps: DeletionDeps,
  policy: RetentionPolicy | undefined,
  signal: AbortSignal,
): Promise<void> {
  await clearDeletedTasks(deps, { signal })
  if (policy === undefined) return
  let tasks = 0
  while (!signal.aborted) {
    const retired = await deps.dispatch.retire(policy)
    if (retired.length === 0) break
    tasks += retired.length
    await clearDeletedTasks(deps, { signal })
  }
  if (tasks > 0) deps.logger.info({ tasks }, 'old tasks were deleted, as server.retention says')
}
