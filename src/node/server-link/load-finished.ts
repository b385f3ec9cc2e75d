import type { Logger } from 'pino'
import type { SessionOutcome } from '../../model/session-outcome.ts'
import { fileExists } from '../../lib/fs/file-exists.ts'
import { SessionFolder, sessionsFolder } from '../session/session-folder.ts'
import type { WorkerNode } from './worker-node.ts'

/**
 * Returns the outcomes of sessions that ended in an earlier process and were not delivered. Folders that cannot be read,
 * and folders without a result for a server, are left unchanged.
 */
export async function loadFinished(
  node: Pick<WorkerNode, 'dir' | 'archive' | 'sessions'>,
  logger: Logger,
): Promise<SessionOutcome[]> {
  const finished: SessionOutcome[] = []
  const running = new Set(node.sessions.map(({ sessionId }) => sessionId))
  for (const folder of await SessionFolder.all(sessionsFolder(node.dir))) {
    if (running.has(folder.id) || !(await folder.hasEnded())) continue
    try {
      const outcome = await folder.readOutcome()
      // The earlier process released the lease of a cancelled session.
      if (outcome.status === 'CANCELLED') await node.archive(outcome.sessionId, outcome.attempt)
      else if ((await fileExists(folder.result)) || outcome.failure?.code === 'store.unavailable')
        finished.push(outcome)
      else logger.warn({ folder: folder.path }, 'a session has no result for a server; its folder is ignored')
    } catch (error) {
      logger.error(
        { err: error, folder: folder.path },
        'the outcome of a session cannot be read; its folder is ignored',
      )
    }
  }
  return finished
}
