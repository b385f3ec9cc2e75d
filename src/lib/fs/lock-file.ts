import { randomUUID } from 'node:crypto'
import { readFile, rename, unlink, writeFile } from 'node:fs/promises'
import { hostname } from 'node:os'
import { errnoOf } from './errno.ts'
import { linkIfAbsent } from './link-if-absent.ts'

/** A process on a machine, told apart from a later one that was given the same number. */
export interface ProcessIdentity {
  host: string
  /** Changes when the machine starts again; empty where the system does not say. */
  boot: string
  pid: number
  /** When it started, in the system's own unit; empty where the system does not say. */
  started: string
}

export interface LockFile {
  /** Gives the lock back. Idempotent; never takes away the lock of someone else. */
  release(): Promise<void>
}

export type LockOutcome = { lock: LockFile } | { heldBy: ProcessIdentity | undefined }

/** Who this process is. Does not change while it lives, so ask once. */
export async function identifyProcess(): Promise<ProcessIdentity> {
  const running = await readProcess(process.pid)
  return { host: hostname(), boot: await readBootId(), pid: process.pid, started: running?.started ?? '' }
}

/**
 * Takes an exclusive lock that is a file: whoever creates it holds it, and a holder that is certainly dead is replaced.
 * The lock is advisory, between processes and within one. A holder on another machine cannot be looked at and counts as
 * alive. Throws only what the file system throws.
 */
export async function acquireLockFile(path: string, self: ProcessIdentity): Promise<LockOutcome> {
  const token = randomUUID()
  const own = `${path}.${token}`
  // Written aside and linked into place: nobody ever reads a lock that is half there.
  await writeFile(own, JSON.stringify({ ...self, token }), { mode: 0o600, flag: 'wx' })
  try {
    if (await linkIfAbsent(own, path)) return { lock: createLock(path, token) }
    return await takeOver(path, own, token)
  } finally {
    await unlinkIfThere(own)
  }
}

/**
 * Replaces the lock of a dead holder. Two processes may come to that conclusion at the same time, so only the one that
 * creates the takeover file goes on, and it looks again. Dying with that file in hand leaves the lock to a person.
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
    await unlinkIfThere(takeover)
  }
}

function createLock(path: string, token: string): LockFile {
  return {
    async release() {
      const holder = await readHolder(path)
      if (holder !== 'absent' && holder?.token === token) await unlinkIfThere(path)
    },
  }
}

type Holder = ProcessIdentity & { token: string }

/** Undefined: there is a lock, but not one we can read. */
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

/** State and start time from /proc; undefined where there is none. */
async function readProcess(pid: number): Promise<{ zombie: boolean; started: string } | undefined> {
  const stat = await readFile(`/proc/${pid}/stat`, 'utf8').catch(() => undefined)
  if (stat === undefined) return undefined
  // The command's name stands in brackets and may contain anything; the fields after it are numbers and one letter.
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
  return { zombie: fields[0] === 'Z' || fields[0] === 'X', started: fields[19] ?? '' }
}

async function unlinkIfThere(path: string): Promise<void> {
  try {
    await unlink(path)
  } catch (error) {
    if (errnoOf(error) !== 'ENOENT') throw error
  }
}
