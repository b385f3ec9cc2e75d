import { randomUUID } from 'node:crypto'
import { readFile, rename, unlink, writeFile } from 'node:fs/promises'
import { hostname } from 'node:os'
import { errnoOf, ignoreErrno } from './errno.ts'
import { linkIfAbsent } from './link-if-absent.ts'

/** Identifies a process, and distinguishes it from a later process with the same pid. */
export interface ProcessIdentity {
  host: string
  /** Boot id of the machine; empty if unknown. */
  boot: string
  pid: number
  /** Start time in the unit of the system; empty if unknown. */
  started: string
}

export interface LockFile {
  /** Releases the lock. Idempotent; never removes the lock of another holder. */
  release(): Promise<void>
}

export type LockOutcome = { lock: LockFile } | { heldBy: ProcessIdentity | undefined }

/** Identifies this process. The result is constant, so callers may keep it. */
export async function identifyProcess(): Promise<ProcessIdentity> {
  const running = await readProcess(process.pid)
  return { host: hostname(), boot: await readBootId(), pid: process.pid, started: running?.started ?? '' }
}

/**
 * Acquires an exclusive, advisory lock file, also between callers within a process. The lock of a process that is certainly
 * dead is replaced. A holder on another machine counts as alive. Throws only errors of the file system.
 */
export async function acquireLockFile(path: string, self: ProcessIdentity): Promise<LockOutcome> {
  const token = randomUUID()
  const own = `${path}.${token}`
  // Linked into place when complete, so that no process reads a partial lock.
  await writeFile(own, JSON.stringify({ ...self, token }), { mode: 0o600, flag: 'wx' })
  try {
    if (await linkIfAbsent(own, path)) return { lock: createLock(path, token) }
    return await takeOver(path, own, token)
  } finally {
    await unlink(own).catch(ignoreErrno('ENOENT'))
  }
}

/**
 * Replaces the lock of a dead holder. Several processes may find it dead at the same time, so only the process that creates
 * the takeover file continues, and it checks again. If that process dies, the takeover file must be removed manually.
 */
async function takeOver(path: string, own: string, token: string): Promise<LockOutcome> {
  const holder = await readHolder(path)
  if (holder !== 'absent' && !(await isDead(holder))) return { heldBy: holder }
  const takeover = `${path}.takeover`
  if (!(await linkIfAbsent(own, takeover))) return { heldBy: holder === 'absent' ? undefined : holder }
  try {
    const current = await readHolder(path)
    if (current === 'absent') {
      if (!(await linkIfAbsent(own, path))) return { heldBy: undefined }
    } else if (await isDead(current)) {
      await rename(own, path)
    } else {
      return { heldBy: current }
    }
    return { lock: createLock(path, token) }
  } finally {
    await unlink(takeover).catch(ignoreErrno('ENOENT'))
  }
}

function createLock(path: string, token: string): LockFile {
  return {
    async release() {
      const holder = await readHolder(path)
      if (holder !== 'absent' && holder?.token === token) await unlink(path).catch(ignoreErrno('ENOENT'))
    },
  }
}

type Holder = ProcessIdentity & { token: string }

/** Undefined if the lock exists but is not readable. */
async function readHolder(path: string): Promise<Holder | 'absent' | undefined> {
  try {
    const value: Partial<Holder> = JSON.parse(await readFile(path, 'utf8'))
    const { host, boot, pid, started, token } = value
    if (host === undefined || boot === undefined || pid === undefined || started === undefined || token === undefined) {
      return undefined
    }
    return { host, boot, pid, started, token }
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return 'absent'
    if (error instanceof SyntaxError) return undefined
    throw error
  }
}

async function isDead(holder: ProcessIdentity | undefined): Promise<boolean> {
  if (holder === undefined) return false
  if (holder.host !== hostname()) return false
  const boot = await readBootId()
  if (holder.boot !== '' && boot !== '' && holder.boot !== boot) return true
  if (!exists(holder.pid)) return true
  const running = await readProcess(holder.pid)
  if (running === undefined) return false
  return running.zombie || (holder.started !== '' && holder.started !== running.started)
}

function exists(pid: number): boolean {
  try {
    process.kill(pid, 0)
    return true
  } catch (error) {
    return errnoOf(error) !== 'ESRCH'
  }
}

async function readBootId(): Promise<string> {
  return (await readFile('/proc/sys/kernel/random/boot_id', 'utf8').catch(() => '')).trim()
}

/** Reads state and start time from /proc; undefined if /proc does not have the process. */
async function readProcess(pid: number): Promise<{ zombie: boolean; started: string } | undefined> {
  const stat = await readFile(`/proc/${pid}/stat`, 'utf8').catch(() => undefined)
  if (stat === undefined) return undefined
  // The name of the command is in brackets and may contain any character; the fields after it are numbers and one letter.
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
  return { zombie: fields[0] === 'Z' || fields[0] === 'X', started: fields[19] ?? '' }
}
