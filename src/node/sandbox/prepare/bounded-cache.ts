import { randomUUID } from 'node:crypto'
import { readdir, readFile, rename, rm, stat, utimes, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { acquireLockFile, identifyProcess, type LockFile } from '../../../lib/fs/lock-file.ts'
import { makeDirectories } from '../../../lib/fs/make-directories.ts'
import { runProgram } from '../../../lib/process/run-program.ts'

export interface CacheLimits {
  /**
   * Limit of all entries together. Entries that were used in the last minutes are kept in any case, because they may be
   * in use.
   */
  maxBytes: number
  /** Maximum time since the last use of an entry. */
  maxAgeMs: number
}

/** An entry that was used within this time may still be in use, possibly by another process. */
const IN_USE_MS = 15 * 60_000
const LOCK_POLL_MS = 100

/**
 * Folders that can be recreated; the least recently used ones are removed when they exceed the limits. Several
 * processes may share the cache. An entry `x` is the folder `x` and the file `x.json`, which holds its size; the
 * modification time of that file is the time of the last use. Without the file, the folder is incomplete.
 */
export class BoundedCache {
  readonly #dir: string
  readonly #limits: CacheLimits
  readonly #now: () => number
  readonly #inUse = new Map<string, number>()
  readonly #self = identifyProcess()

  constructor(dir: string, limits: CacheLimits, now: () => number) {
    this.#dir = dir
    this.#limits = limits
    this.#now = now
  }

  pathOf(name: string): string {
    return join(this.#dir, name)
  }

  /** Marks an entry as in use during `work`, whether or not it exists yet. */
  async using<T>(name: string, work: () => Promise<T>): Promise<T> {
    this.#inUse.set(name, (this.#inUse.get(name) ?? 0) + 1)
    try {
      await this.#touch(name)
      return await work()
    } finally {
      const others = (this.#inUse.get(name) ?? 1) - 1
      if (others === 0) this.#inUse.delete(name)
      else this.#inUse.set(name, others)
      await this.#touch(name)
    }
  }

  async has(name: string): Promise<boolean> {
    // The file is written last and removed first.
    return (await stat(this.#noteOf(name)).catch(() => undefined)) !== undefined
  }

  /** Runs `work` while holding the lock of an entry, over all processes. */
  async exclusively<T>(name: string, signal: AbortSignal, work: () => Promise<T>): Promise<T> {
    await makeDirectories(this.#dir, 0o700)
    let lock: LockFile | undefined
    while (lock === undefined) {
      signal.throwIfAborted()
      lock = await this.#tryLock(name)
      if (lock === undefined) await sleep(LOCK_POLL_MS, undefined, { signal })
    }
    try {
      return await work()
    } finally {
      await lock.release()
    }
  }

  /** Marks the folder as complete and stores its size; then removes entries over the limits. */
  async keep(name: string): Promise<void> {
    const { stdout } = await runProgram(['du', '-sk', '--', this.pathOf(name)], { env: { PATH: '/usr/bin:/bin' } })
    const bytes = (Number.parseInt(stdout, 10) || 0) * 1024
    const note = this.#noteOf(name)
    const draft = `${note}.${randomUUID()}`
    await writeFile(draft, JSON.stringify({ bytes }), { mode: 0o600 })
    await rename(draft, note)
    await this.#touch(name)
    await this.#evict()
  }

  async #evict(): Promise<void> {
    const now = this.#now()
    for (const name of await this.#listUnfinished()) await this.#remove(name, now)
    const entries = (await this.#list()).sort((one, other) => one.usedAt - other.usedAt)
    let total = entries.reduce((sum, { bytes }) => sum + bytes, 0)
    for (const { name, bytes, usedAt } of entries) {
      const isOld = now - usedAt > this.#limits.maxAgeMs
      if (!isOld && total <= this.#limits.maxBytes) continue
      if (now - usedAt < IN_USE_MS || this.#inUse.has(name)) continue
      if (await this.#remove(name, usedAt)) total -= bytes
    }
  }

  /** Returns whether the entry was removed. Keeps an entry that is locked or was just used. */
  async #remove(name: string, usedAt: number): Promise<boolean> {
    const lock = await this.#tryLock(name)
    if (lock === undefined) return false
    try {
      const note = await stat(this.#noteOf(name)).catch(() => undefined)
      if (this.#inUse.has(name) || (note !== undefined && note.mtimeMs > usedAt)) return false
      await rm(this.#noteOf(name), { force: true })
      const trash = `${this.pathOf(name)}.${randomUUID()}.trash`
      await rename(this.pathOf(name), trash).catch(() => {})
      await rm(trash, { recursive: true, force: true })
      return true
    } finally {
      await lock.release()
    }
  }

  async #list(): Promise<{ name: string; bytes: number; usedAt: number }[]> {
    const notes = (await readdir(this.#dir)).filter((file) => file.endsWith('.json'))
    const entries = await Promise.all(
      notes.map(async (file) => {
        const path = join(this.#dir, file)
        try {
          const { bytes } = JSON.parse(await readFile(path, 'utf8')) as { bytes: number }
          return { name: file.slice(0, -'.json'.length), bytes, usedAt: (await stat(path)).mtimeMs }
        } catch {
          // Another process has just removed the entry.
          return undefined
        }
      }),
    )
    return entries.filter((entry) => entry !== undefined)
  }

  /** Returns incomplete folders: those of dead processes, and those that are locked and being created. */
  async #listUnfinished(): Promise<string[]> {
    const files = await readdir(this.#dir, { withFileTypes: true })
    const names = new Set(files.map(({ name }) => name))
    return files.filter((file) => file.isDirectory() && !names.has(`${file.name}.json`)).map(({ name }) => name)
  }

  async #tryLock(name: string): Promise<LockFile | undefined> {
    const outcome = await acquireLockFile(`${this.pathOf(name)}.lock`, await this.#self)
    return 'lock' in outcome ? outcome.lock : undefined
  }

  async #touch(name: string): Promise<void> {
    const seconds = this.#now() / 1000
    await utimes(this.#noteOf(name), seconds, seconds).catch(() => {})
  }

  #noteOf(name: string): string {
    return `${this.pathOf(name)}.json`
  }
}
