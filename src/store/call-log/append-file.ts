import { fdatasync, write } from 'node:fs'
import type { Limit } from '../../lib/async/limit.ts'
import { type BufferPool, ByteWriter } from './byte-writer.ts'

/** How long a record that nobody waits for may wait for company; a write costs about 40 us whatever its size. */
const LINGER_MS = 5
/** How long written bytes may stay in the memory of the kernel. */
const SYNC_EVERY_MS = 50

/** `process`: survives `kill -9` of the writer. `disk`: survives a power cut, and waits for the disk at every turn. */
export type Durability = 'process' | 'disk'

/** The system calls of an open log, so that a test can count them and let them fail. */
export interface FileIo {
  /** Gives the number of bytes taken, which may be less than there are. */
  write(fd: number, bytes: Buffer, position: number): Promise<number>
  datasync(fd: number): Promise<void>
}

// The callback functions: an await on a FileHandle's own methods costs another 10 us a call.
export const nodeFileIo: FileIo = {
  write: (fd, bytes, position) =>
    new Promise((resolve, reject) => {
      write(fd, bytes, 0, bytes.length, position, (error, taken) => (error === null ? resolve(taken) : reject(error)))
    }),
  datasync: (fd) =>
    new Promise((resolve, reject) => {
      fdatasync(fd, (error) => (error === null ? resolve() : reject(error)))
    }),
}

export interface AppendFileDeps {
  io: FileIo
  pool: BufferPool
  /** Shared by all files of a store: syncs must not fill the thread pool that the writes go through. */
  syncLimit: Limit
  durability: Durability
  /** Called once, before anyone who waits for the failed bytes goes on. */
  onFailure: (error: unknown) => void
}

/**
 * A file that only grows. What is appended while a write is under way goes out together in the next one. The first
 * error ends it for good: nothing is written behind a record that may be half there.
 */
export class AppendFile {
  readonly #fd: number
  readonly #deps: AppendFileDeps
  #pending: ByteWriter
  #waiting: (() => void)[] = []
  #draining = false
  #failed = false
  /** End of what the kernel has taken. */
  #written: number
  /** End of what the disk has taken. */
  #synced: number
  #nextSync: Promise<void> | undefined
  readonly #syncsUnderway = new Set<Promise<void>>()
  #lingerTimer: NodeJS.Timeout | undefined
  #syncTimer: NodeJS.Timeout | undefined

  constructor(fd: number, size: number, deps: AppendFileDeps) {
    this.#fd = fd
    this.#deps = deps
    this.#pending = new ByteWriter(deps.pool)
    this.#written = size
    this.#synced = size
  }

  /** Bytes in the file. */
  get size(): number {
    return this.#written
  }

  /** Bytes in the file, and those that were appended since the last write began. */
  get length(): number {
    return this.#written + this.#pending.length
  }

  /** Adds what `put` puts, wholly or (when it throws) not at all. Written within a few milliseconds. */
  append(put: (writer: ByteWriter) => void): void {
    if (this.#failed) return
    const before = this.#pending.length
    try {
      put(this.#pending)
    } catch (error) {
      this.#pending.cut(before)
      throw error
    }
    if (!this.#draining) this.#lingerTimer ??= setTimeout(() => this.#drain(), LINGER_MS)
  }

  /** Resolves when all that was appended before has been written, or has failed to. Never rejects. */
  flush(): Promise<void> {
    if (!this.#draining && (this.#failed || this.#pending.length === 0)) return Promise.resolve()
    return new Promise((resolve) => {
      this.#waiting.push(resolve)
      this.#drain()
    })
  }

  /** As `flush`, and the disk has it too. */
  async sync(): Promise<void> {
    await this.flush()
    await this.#sync()
  }

  /** Resolves when all that was appended before is as safe as was asked for, or has failed to. Never rejects. */
  settle(): Promise<void> {
    return this.#deps.durability === 'disk' ? this.sync() : this.flush()
  }

  /** Writes what is left and stops all activity. The descriptor stays the caller's, who may close it then. */
  async end(): Promise<void> {
    await this.sync()
    await Promise.all(this.#syncsUnderway)
    clearTimeout(this.#syncTimer)
    this.#syncTimer = undefined
  }

  #drain(): void {
    clearTimeout(this.#lingerTimer)
    this.#lingerTimer = undefined
    if (this.#draining) return
    this.#draining = true
    void this.#writeBatches()
  }

  async #writeBatches(): Promise<void> {
    while (this.#pending.length > 0 || this.#waiting.length > 0) {
      const batch = this.#pending
      const waiting = this.#waiting
      this.#pending = new ByteWriter(this.#deps.pool)
      this.#waiting = []
      try {
        await this.#writeWhole(batch.bytes)
      } catch (error) {
        this.#fail(error)
      }
      batch.release()
      for (const resolve of waiting) resolve()
    }
    this.#draining = false
  }

  async #writeWhole(bytes: Buffer): Promise<void> {
    let done = 0
    while (done < bytes.length && !this.#failed) {
      const taken = await this.#deps.io.write(this.#fd, bytes.subarray(done), this.#written + done)
      if (taken === 0) throw new Error('the system took no bytes')
      done += taken
    }
    if (this.#failed) return
    this.#written += bytes.length
    if (bytes.length > 0 && this.#deps.durability === 'process') this.#syncLater()
  }

  #syncLater(): void {
    this.#syncTimer ??= setTimeout(() => {
      // Cleared when the sync is done, not when it starts: a slow disk is not asked twice at a time.
      void this.#sync().finally(() => {
        this.#syncTimer = undefined
        if (this.#synced < this.#written && !this.#failed) this.#syncLater()
      })
    }, SYNC_EVERY_MS).unref()
  }

  /** A sync that has not begun covers whatever is written until it does, so one in waiting is enough. */
  #sync(): Promise<void> {
    if (this.#failed || this.#synced >= this.#written) return Promise.resolve()
    if (this.#nextSync !== undefined) return this.#nextSync
    let begun = false
    const sync = this.#deps.syncLimit(() => {
      begun = true
      this.#nextSync = undefined
      return this.#syncNow()
    })
    // With a free slot it has begun before we get here.
    if (!begun) this.#nextSync = sync
    this.#syncsUnderway.add(sync)
    return sync.finally(() => this.#syncsUnderway.delete(sync))
  }

  async #syncNow(): Promise<void> {
    const covered = this.#written
    if (this.#failed || this.#synced >= covered) return
    try {
      await this.#deps.io.datasync(this.#fd)
      this.#synced = Math.max(this.#synced, covered)
    } catch (error) {
      this.#fail(error)
    }
  }

  #fail(error: unknown): void {
    if (this.#failed) return
    this.#failed = true
    this.#pending.release()
    this.#deps.onFailure(error)
  }
}
