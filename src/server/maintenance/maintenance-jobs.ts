import type { ServerDeps } from '../deps.ts'
import { isHealthy } from '../routes/views.ts'
import { retireTasks } from './deleted-tasks.ts'
import type { MaintenanceJob } from './start-maintenance.ts'

const SECOND = 1000
const MINUTE = 60 * SECOND
const HOUR = 60 * MINUTE
const DAY = 24 * HOUR

/** At least as long as NVIDIA Polar keeps a tombstone. */
const TOMBSTONES_MS = HOUR
/** Longer than a submission of a deleted task can be delayed; afterwards the task id can be submitted again. */
const DELETED_MS = DAY
/** How far a reader of events may fall behind. */
const EVENTS_MS = 7 * DAY
const DELIVERED_MS = 7 * DAY
/** A node may be disconnected for this time with an unfinished upload. */
const UPLOADS_MS = DAY

export function maintenanceJobs(deps: ServerDeps): MaintenanceJob[] {
  const { dispatch, leaseQueue, files, leaseMs, retention } = deps
  return [
    // Several times within a lease, and at least every second because of the retry delays.
    { name: 'expire leases', everyMs: Math.min(SECOND, leaseMs / 6), work: () => dispatch.expire() },
    // A notification may be lost.
    { name: 'serve waiting lease requests', everyMs: 5 * SECOND, work: async () => leaseQueue.notify() },
    { name: 'remove drained nodes', everyMs: MINUTE, work: () => removeDrainedNodes(deps) },
    { name: 'vacuum the database', everyMs: 3 * MINUTE, work: () => dispatch.maintain() },
    {
      name: 'prune the database',
      everyMs: 5 * MINUTE,
      work: () =>
        dispatch.prune({
          eventsOlderThanMs: EVENTS_MS,
          tombstonesOlderThanMs: TOMBSTONES_MS,
          deletedOlderThanMs: DELETED_MS,
          deliveredCallbacksOlderThanMs: DELIVERED_MS,
        }),
    },
    { name: 'delete old tasks', everyMs: MINUTE, work: (signal) => retireTasks(deps, retention, signal) },
    { name: 'delete abandoned uploads', everyMs: 10 * MINUTE, work: () => files.sweep(UPLOADS_MS) },
    {
      name: 'delete files without a row',
      everyMs: HOUR,
      work: () => files.sweepKept(UPLOADS_MS, (paths) => dispatch.files.findKnown(paths)),
    },
  ]
}

/** Removes draining nodes without leases that stopped sending heartbeats: their processes will not leave by themselves. */
async function removeDrainedNodes({ dispatch, clock }: ServerDeps): Promise<void> {
  for (const node of await dispatch.nodes.list()) {
    if (node.draining && node.leased === 0 && !isHealthy(node, clock.now())) {
      await dispatch.removeIdleNode(node.registration.node_id)
    }
  }
}
