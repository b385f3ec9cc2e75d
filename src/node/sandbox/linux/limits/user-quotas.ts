import { readIfExists } from '../files/read-if-exists.ts'

/** Share of a user's limits for all sandboxes together; the rest is for the node and other programs of that user. */
const SHARED = 0.75
/** Enough for one message queue with the kernel's default attributes. */
const LEAST_QUEUE_BYTES = 128 * 1024
const LEAST_INSTANCES = 2
const LEAST_PROCESSES = 64

/** Finite limits that the kernel counts per user of the machine. */
export interface UserLimits {
  inotifyInstances?: number
  inotifyWatches?: number
  processes?: number
  pendingSignals?: number
  messageQueueBytes?: number
}

/**
 * Returns the share of a user's limits for one sandbox. The kernel also counts per user namespace, and each sandbox has
 * its own; the lowest limit on the path to the root namespace applies.
 */
export function divideLimits(limits: UserLimits, sandboxes: number): UserLimits {
  const share = (limit: number | undefined, least: number): number | undefined =>
    limit === undefined ? undefined : Math.min(limit, Math.max(least, Math.floor((limit * SHARED) / sandboxes)))
  return {
    inotifyInstances: share(limits.inotifyInstances, LEAST_INSTANCES),
    inotifyWatches: share(limits.inotifyWatches, 1024),
    processes: share(limits.processes, LEAST_PROCESSES),
    pendingSignals: share(limits.pendingSignals, 64),
    messageQueueBytes: share(limits.messageQueueBytes, LEAST_QUEUE_BYTES),
  }
}

/** Limits of the user that this process runs as. */
export function readUserLimits(): UserLimits {
  const own = readIfExists('/proc/self/limits')
  const soft = (name: string): number | undefined => {
    const value = new RegExp(`^${name}\\s+(\\d+)`, 'm').exec(own)?.[1]
    return value === undefined ? undefined : Number(value)
  }
  return {
    inotifyInstances: smallest('/proc/sys/fs/inotify/max_user_instances', '/proc/sys/user/max_inotify_instances'),
    inotifyWatches: smallest('/proc/sys/fs/inotify/max_user_watches', '/proc/sys/user/max_inotify_watches'),
    processes: soft('Max processes'),
    pendingSignals: soft('Max pending signals'),
    messageQueueBytes: soft('Max msgqueue size'),
  }
}

/** Returns `name=value` for the files of `/proc/sys/user` in the sandbox's own user namespace. */
export function toSysctls({ inotifyInstances, inotifyWatches }: UserLimits): string[] {
  const values = { max_inotify_instances: inotifyInstances, max_inotify_watches: inotifyWatches }
  return Object.entries(values).flatMap(([name, value]) => (value === undefined ? [] : [`${name}=${value}`]))
}

function smallest(...paths: string[]): number | undefined {
  const values = paths.map((path) => Number.parseInt(readIfExists(path), 10)).filter((value) => Number.isFinite(value))
  return values.length === 0 ? undefined : Math.min(...values)
}
