import { fdatasync, write } from 'node:fs'
import type { Limit } from '../../lib/async/limit.ts'
import { type BufferPool, ByteWriter } from './byte-writer.ts'

/** How long a record that no caller awaits is delayed for batching; a write costs about 40 us whatever its size. */
const LINGER_MS = 5
/** How long written bytes may stay in the kernel's page cache. */
const SYNC_EVERY_MS = 50

/** `process`: survives `kill -9` of the writer. `disk`: survives a loss of power, and syncs at every turn. */
export type Durability = 'process' | 'disk'

/** System calls of an open log; tests count them or make them fail. */
export interface FileIo {
  /** Resolves with the number of bytes written, which may be fewer than given. */
  write(fd: number, bytes: Buffer, position: number): Promise<number>
  datasync(fd: number): Promise<void>
}

// Uses the callback functions: awaiting a FileHandle method costs another 10 us per call.
export const nodeFileIo: FileIo = {
  write: (fd, bytes, position) =>
    new Promise((resolve, reject) => {
      write(fd, bytes, 0, bytes.length, position, (error, written) =>
        error === null ? resolve(written) : reject(error),
      )
    }),
  datasync: (fd) =>
    new Promise((resolve, reject) => {
      fdatasync(fd, (error) => (error === null ? resolve() : reject(error)))
    }),
}

export interface AppendFileDeps {
  io: FileIo
  pool: BufferPool
  /** Shared by all files of a store: syncs must not occupy the thread pool that writes need. */
  syncLimit: Limit
  durability: Durability
  /** Called once, before the promises for the failed bytes resolve. */
  onFailure: (error: unknown) => void
}

/**
 * Append-only file. Bytes that are appended while a write runs are batched in the next write. The first error is final: nothing
 * is written after a record that may be incomplete.
 */
export class AppendFile {
  readonly #fd: number
  readonly #deps: AppendFileDeps
  #pending: ByteWriter
  #waiting: (() => void)[] = []
  #draining = false
  #failed = false
  /** End of the bytes passed to the kernel. */
  #written: number
  /** End of the bytes synced to disk. */
  #synced: number
  #nextSync: Promise<void> | undefined
  readonly #runningSyncs = new Set<Promise<void>>()
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

  /** Bytes in the file and in the next batch. */
  get length(): number {
    return this.#written + this.#pending.length
  }

  /** Appends what `put` writes; nothing if `put` throws. Written within a few milliseconds. */
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

  /** Resolves when all earlier appends are written or failed. Never rejects. */
  flush(): Promise<void> {
    if (!this.#draining && (this.#failed || this.#pending.length === 0)) return Promise.resolve()
    return new Promise((resolve) => {
      this.#waiting.push(resolve)
      this.#drain()
    })
  }

  /** Like `flush`, and synced to disk. */
  async sync(): Promise<void> {
    await this.flush()
    await this.#sync()
  }

  /** Resolves when all earlier appends have the configured durability or failed. Never rejects. */
  settle(): Promise<void> {
    return this.#deps.durability === 'disk' ? this.sync() : this.flush()
  }

  /** Writes the remaining bytes and stops all timers. The caller may close the descriptor afterwards. */
  async end(): Promise<void> {
    await this.sync()
    await Promise.all(this.#runningSyncs)
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
      const written = await this.#deps.io.write(this.#fd, bytes.subarray(done), this.#written + done)
      if (written === 0) throw new Error('the system wrote no bytes')
      done += written
    }
    if (this.#failed) return
    this.#written += bytes.length
    if (bytes.length > 0 && this.#deps.durability === 'process') this.#syncLater()
  }

  #syncLater(): void {
    this.#syncTimer ??= setTimeout(() => {
      // Cleared when the sync ends, not when it starts: a slow disk gets no second sync meanwhile.
      void this.#sync().finally(() => {
        this.#syncTimer = undefined
        if (this.#synced < this.#written && !this.#failed) this.#syncLater()
      })
    }, SYNC_EVERY_MS).unref()
  }

  /** A waiting sync covers all bytes written until it starts, so one waiting sync is enough. */
  #sync(): Promise<void> {
    if (this.#failed || this.#synced >= this.#written) return Promise.resolve()
    if (this.#nextSync !== undefined) return this.#nextSync
    let begun = false
    const sync = this.#deps.syncLimit(() => {
      begun = true
      this.#nextSync = undefined
      return this.#syncNow()
    })
    // With a free slot the sync has already begun.
    if (!begun) this.#nextSync = sync
    this.#runningSyncs.add(sync)
    return sync.finally(() => this.#runningSyncs.delete(sync))
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
