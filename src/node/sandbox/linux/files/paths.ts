import { realpath } from 'node:fs/promises'
import { RolloutError } from '../../../../model/failure.ts'

/** Search path for programs of the machine, independent of the environment of this process. */
export const HOST_PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'
export const HOST_ENV = { PATH: HOST_PATH }
/** Search path of commands, unless their image sets another. */
export const INSIDE_PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'
/** User id inside. Not 0: harnesses refuse to run as root, and tar as root tries to change owners. */
export const INSIDE_ID = 1000
export const INSIDE_HOME = '/home/agent'
/** Files with data of the machine: names of keys, kernel memory, timers of every processor. */
export const COVERED = ['/proc/keys', '/proc/key-users', '/proc/kcore', '/proc/timer_list']

/** Validates a path before it is appended to another path: it must not leave that path. */
export function insidePath(path: string): string {
  const parts = path.split('/').slice(1)
  const isFine =
    path.startsWith('/') && path !== '/' && !parts.some((part) => part === '..' || part === '.' || part === '')
  if (isFine && !/[\0\n]/.test(path)) return path
  throw new RolloutError('runtime.unsupported', `${JSON.stringify(path)} is not a normalized absolute path`)
}

/** Returns the path of a mount source without symbolic links. */
export async function resolveMountSource(source: string): Promise<string> {
  return realpath(source).catch((cause: unknown) => {
    throw new RolloutError('runtime.start-failed', `${source} cannot be mounted: it does not exist`, { cause })
  })
}
