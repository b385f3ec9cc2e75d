import type { RetentionPolicy } from '../../store/dispatch/port.ts'
import type { ServerDeps } from '../deps.ts'

type DeletionDeps = Pick<ServerDeps, 'dispatch' | 'files' | 'logger'>

/**
 * Removes rows and then files of deleted tasks, in small steps, so that other statements do not wait long. A crash in between
 * leaves files without a row, which are swept later, but never a row without its file.
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

/** Deletes tasks that exceed the retention policy, after finishing interrupted deletions. */
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
  if (tasks > 0) deps.logger.info({ tasks }, 'old tasks were deleted because of server.retention')
}
