import { readIfExists } from '../files/read-if-exists.ts'

/** What sandboxes of one user may use together; the rest is for the node and other programs of that user. */
const SHARED = 0.75
/** Enough for one message queue with the kernel's default attributes. */
const LEAST_QUEUE_BYTES = 128 * 1024
const LEAST_INSTANCES = 2
const LEAST_PROCESSES = 64

/** Limits that the kernel counts per user of the machine, as far as they are finite. */
export interface UserLimits {
  inotifyInstances?: number
  inotifyWatches?: number
  processes?: number
  pendingSignals?: number
  messageQueueBytes?: number
}

/**
 * The part of a user's limits that one sandbox may use, so that sandboxes of the same user leave something for each other.
 * The kernel counts per user namespace as well, and each sandbox has its own; the smallest count on the way up decides.
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

/** The limits of the user that this process runs as. */
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

/** For the files of `/proc/sys/user` in the sandbox's own user namespace, as `name=value`. */
export function toSysctls({ inotifyInstances, inotifyWatches }: UserLimits): string[] {
  const values = { max_inotify_instances: inotifyInstances, max_inotify_watches: inotifyWatches }
  return Object.entries(values).flatMap(([name, value]) => (value === undefined ? [] : [`${name}=${value}`]))
}

function smallest(...paths: string[]): number | undefined {
  const values = paths.map((path) => Number.parseInt(readIfExists(path), 10)).filter((value) => Number.isFinite(value))
  return values.length === 0 ? undefined : Math.min(...values)
}
