import { findKnownFiles } from '../../store/dispatch/queries/known-files.ts'
import type { Chore } from './maintenance-job.ts'
import { retireTasks } from './deleted-tasks.ts'
import type { ServerDeps } from '../deps.ts'
import { removeGoneNodes } from '../routes/nodes.ts'

const SECOND = 1000
const MINUTE = 60 * SECOND
const HOUR = 60 * MINUTE
const DAY = 24 * HOUR

/** As long as NVIDIA Polar keeps one, and then some. */
const TOMBSTONES_MS = HOUR
/** Longer than any submission of a deleted task is still under way; a trainer that asks for it again gets it then. */
const DELETED_MS = DAY
/** How far back a reader of events may have fallen. */
const EVENTS_MS = 7 * DAY
const DELIVERED_MS = 7 * DAY
/** A node may be away for so long with half a result sent. */
const UPLOADS_MS = DAY

/** All that the server does without being asked. */
export function toChores(deps: ServerDeps): Chore[] {
  const { database, dispatch, desk, files, leaseMs, retention } = deps
  return [
    // Several times within a lease, and often enough that what rests after a failure is woken in time.
    { name: 'expire leases', everyMs: Math.min(SECOND, leaseMs / 6), work: () => dispatch.expire() },
    // A notification may be lost.
    { name: 'look for work', everyMs: 5 * SECOND, work: async () => desk.ring() },
    { name: 'remove nodes that are gone', everyMs: MINUTE, work: () => removeGoneNodes(deps) },
    { name: 'maintain the database', everyMs: 3 * MINUTE, work: () => database.maintain() },
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
    { name: 'sweep uploads', everyMs: 10 * MINUTE, work: () => files.sweep(UPLOADS_MS) },
    {
      name: 'sweep files that no row names',
      everyMs: HOUR,
      work: () => files.sweepKept(UPLOADS_MS, (paths) => findKnownFiles(database.db, paths)),
    },
  ]
}
