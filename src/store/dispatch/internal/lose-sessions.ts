import { RolloutError } from '../../../model/failure.ts'
import type { Lease } from '../types.ts'
import type { Settle } from './settle-queue.ts'

export interface LostLease extends Lease {
  taskId: string
  /** Applies only if the lease was not renewed since. */
  beat?: number
}

/** Ends attempts whose node is lost. Returns how many; an attempt that ended or was renewed in the meantime is skipped. */
export async function loseSessions(settle: Settle, lost: readonly LostLease[]): Promise<number> {
  const message = 'The node stopped renewing the lease while the session was running; see the log of that node.'
  const { failure } = new RolloutError('session.node-lost', message)
  const settled = await Promise.all(
    lost.map(({ taskId, ...lease }) =>
      settle(taskId, { ...lease, kind: 'lost', status: 'ERROR', failure, isTrainable: false }),
    ),
  )
  return settled.filter((each) => each !== undefined).length
}
