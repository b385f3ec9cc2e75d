import { access } from 'node:fs/promises'
import type { Logger } from 'pino'
import type { SessionOutcome } from '../../model/session-outcome.ts'
import { SessionFolder, sessionsFolder } from '../session/session-folder.ts'
import type { WorkerNode } from './worker-node.ts'

/**
 * Sessions that had ended when the process that ran them did, and that were not delivered. What can be read of none of
 * them is set aside, so that it is in nobody's way; what was never meant for a server is left where it is.
 */
export async function loadFinished(
  node: Pick<WorkerNode, 'dir' | 'forget' | 'sessions'>,
  logger: Logger,
): Promise<SessionOutcome[]> {
  const finished: SessionOutcome[] = []
  const running = new Set(node.sessions.map(({ sessionId }) => sessionId))
  for (const folder of await SessionFolder.all(sessionsFolder(node.dir))) {
    if (running.has(folder.id) || !(await folder.hasEnded())) continue
    try {
      const outcome = await folder.readOutcome()
      // Whoever stopped the node has given it back.
      if (outcome.status === 'CANCELLED') await node.forget(outcome.sessionId, outcome.attempt)
      else if ((await isThere(folder.result)) || outcome.failure?.code === 'store.unavailable') finished.push(outcome)
      else logger.warn({ folder: folder.path }, 'a session has ended without a result for a server; it is left alone')
    } catch (error) {
      logger.error({ err: error, folder: folder.path }, 'how a session ended cannot be read; it is left alone')
    }
  }
  return finished
}

function isThere(path: string): Promise<boolean> {
  return access(path).then(
    () => true,
    () => false,
  )
}
