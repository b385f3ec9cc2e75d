import { realpath } from 'node:fs/promises'
import { RolloutError } from '../../../../model/failure.ts'

/** Where we look for tools of the machine, whatever our own environment says. */
export const HOST_PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'
export const HOST_ENV = { PATH: HOST_PATH }
/** Where commands look for programs, unless their image says otherwise. */
export const INSIDE_PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'
/** The user inside. Never 0: harnesses refuse it, and unpacking an archive as root would try to give files away. */
export const INSIDE_ID = 1000
export const INSIDE_HOME = '/home/agent'
/** Tells of the machine, not of the sandbox: names of keys, kernel memory, what every processor is about to do. */
export const COVERED = ['/proc/keys', '/proc/key-users', '/proc/kcore', '/proc/timer_list']

/** Checked before it is put behind another path: it must not lead out of that. */
export function insidePath(path: string): string {
  const parts = path.split('/').slice(1)
  const isFine =
    path.startsWith('/') && path !== '/' && !parts.some((part) => part === '..' || part === '.' || part === '')
  if (isFine && !/[\0\n]/.test(path)) return path
  throw new RolloutError('runtime.unsupported', `${JSON.stringify(path)} is not an absolute path in its simplest form`)
}

/** What is to be mounted, by no link. */
export async function resolveMountSource(source: string): Promise<string> {
  return realpath(source).catch((cause: unknown) => {
    throw new RolloutError('runtime.start-failed', `${source} cannot be mounted: it is not there`, { cause })
  })
}
