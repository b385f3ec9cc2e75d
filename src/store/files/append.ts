import { createHash } from 'node:crypto'
import { join } from 'node:path'
import type { Clock } from '../../lib/async/clock.ts'
import { errnoOf } from '../../lib/fs/errno.ts'
import { RolloutError } from '../../model/failure.ts'
import type { UploadState } from './types.ts'
import { digestOf, joinSegments } from './complete.ts'
import {
  APPEND,
  type AssertFreeSpace,
  CHANGE,
  CREATE,
  onDisk,
  READ,
  renameIfThere,
  syncFolder,
  unlinkIfThere,
  withFile,
} from './disk.ts'
import { receivePart, skipBody } from './receive-part.ts'
import { type FileLock, FileMutex } from './file-mutex.ts'
import { chainOf, countsOf, newSegmentName, type OwnSegment, type Received, WHOLE } from './segments.ts'
import { toState, type UploadRecord, type UploadTable } from './uploads.ts'

/** Segments in memory; a forgotten one costs a copy when its upload is complete. */
const MAX_OWN_SEGMENTS = 4096

export interface AppendDeps {
  dir: string
  uploads: UploadTable
  clock: Clock
  assertFreeSpace: AssertFreeSpace
}

/** One part of an upload. */
interface Part {
  offset: number
  body: ReadableStream<Uint8Array>
  digest: string | undefined
}

/** Receives parts. Counted bytes are on disk; a complete file has been hashed, and no process writes to it any more. */
export class Appender {
  readonly #deps: AppendDeps
  readonly #mutex: FileMutex
  readonly #ownSegments = new Map<string, OwnSegment>()

  constructor(deps: AppendDeps) {
    this.#deps = deps
    this.#mutex = new FileMutex(deps.clock)
  }

  async append(record: UploadRecord, part: Part): Promise<UploadState> {
    using lock = await this.#mutex.acquire(record.uploadId)
    try {
      return await onDisk('A part of an upload could not be stored', () => this.#receive(record, part, lock))
    } catch (error) {
      // The folder was removed meanwhile.
      if (error instanceof RolloutError && errnoOf(error.cause) === 'ENOENT') throw removed(record)
      throw error
    }
  }

  async #receive(record: UploadRecord, part: Part, lock: FileLock): Promise<UploadState> {
    const { offset, body } = part
    const received = await this.#readReceived(record)
    if (received.isComplete || offset < received.offset) {
      return await this.#skip(record, received, part, lock)
    }
    if (offset > received.offset) {
      await skipBody(body, lock)
      throw gap(record, received.offset, offset)
    }
    if (offset === record.bytes && record.bytes > 0) {
      // All bytes were stored, and a crash prevented the digest check.
      if ((await skipBody(body, lock)) > 0) throw gap(record, received.offset, offset)
      return await this.#complete(record, lock)
    }
    return await this.#extend(record, received, part, lock)
  }

  /** The end of the segment of this process is newer in memory than on disk. */
  async #readReceived(record: UploadRecord): Promise<Received> {
    if (record.path !== undefined) return { isComplete: true, offset: 0, segments: [], names: [] }
    const own = this.#ownSegments.get(record.uploadId)
    const received = await this.#deps.uploads.readReceived(record, own)
    if (received === undefined) throw removed(record)
    if (own !== undefined && !received.names.includes(own.name)) this.#ownSegments.delete(record.uploadId)
    return received
  }

  /** A part that is already stored has no effect. A part that is only partly stored does not start at the offset. */
  async #skip(record: UploadRecord, received: Received, part: Part, lock: FileLock): Promise<UploadState> {
    const state = toState(record, received)
    const skipped = await skipBody(part.body, lock)
    if (part.offset + skipped > state.offset) throw gap(record, state.offset, part.offset)
    return state
  }

  async #extend(record: UploadRecord, { offset, names }: Received, part: Part, lock: FileLock): Promise<UploadState> {
    await this.#deps.assertFreeSpace(0)
    const folder = this.#deps.uploads.folderOf(record)
    const known = this.#ownSegments.get(record.uploadId)
    const isNew = known === undefined || known.end !== offset
    const hash = offset === 0 ? createHash('sha256') : isNew ? undefined : known.hash?.copy()
    const name = isNew ? newSegmentName(offset) : known.name
    const start = isNew ? offset : known.start
    const end = await withFile(join(folder, name), isNew ? CREATE : CHANGE, async (file) => {
      const target = { file, position: offset - start, maxBytes: record.bytes - offset, hash, digest: part.digest }
      const bytes = await receivePart(part.body, target, lock)
      // Removes bytes of an earlier part that was cut off.
      if (!isNew) await file.truncate(offset - start + bytes)
      await Promise.all([file.datasync(), ...(isNew ? this.#syncRecord(record) : [])])
      return offset + bytes
    }).catch(async (error: unknown) => {
      // The segment continues at its last count, unless the sync failed: then the state of the file is unknown.
      if (isNew) await unlinkIfThere(join(folder, name))
      else if (!(error instanceof RolloutError)) this.#ownSegments.delete(record.uploadId)
      throw error
    })
    const own = { name, start, end, hash }
    // This process received all bytes in one segment: the segment is the file, and its hash is known.
    if (end === record.bytes && start === 0 && hash !== undefined)
      return await this.#finish(record, name, digestOf(hash), names)
    // Not continued until it is counted: a count after half a line would be read as part of that line.
    this.#ownSegments.delete(record.uploadId)
    await this.#count(folder, own, isNew)
    this.#remember(record.uploadId, own)
    return end === record.bytes
      ? await this.#complete(record, lock)
      : toState(record, { isComplete: false, offset: end })
  }

  /** After a loss of power a folder exists only if its parent folder was synced too. */
  #syncRecord(record: UploadRecord): Promise<void>[] {
    const { dir, uploads } = this.#deps
    return [
      withFile(join(uploads.folderOf(record), 'meta.json'), READ, (file) => file.datasync()),
      syncFolder(join(dir, 'uploads', record.nodeId)),
    ]
  }

  async #count(folder: string, own: OwnSegment, isNew: boolean): Promise<void> {
    await withFile(join(folder, countsOf(own.name)), APPEND, async (file) => {
      await file.writeFile(`${own.end - own.start}\n`)
      await file.datasync()
    })
    if (isNew) await syncFolder(folder)
  }

  /** Completes from the segments on disk: after a restart, or when several servers received parts. */
  async #complete(record: UploadRecord, lock: FileLock): Promise<UploadState> {
    const { segments, names } = await this.#readReceived(record)
    const chain = chainOf(segments)
    const folder = this.#deps.uploads.folderOf(record)
    await this.#deps.assertFreeSpace(record.bytes)
    // Hashes and copies in one pass: another process may still write to a segment, but not to the copy.
    const joined = await joinSegments(folder, chain, lock)
    return await this.#finish(record, joined.name, joined.digest, [...names, joined.name])
  }

  /** `names`: the files in the folder, which are no longer needed in any case. */
  async #finish(record: UploadRecord, name: string, digest: string, names: readonly string[]): Promise<UploadState> {
    const folder = this.#deps.uploads.folderOf(record)
    this.#ownSegments.delete(record.uploadId)
    const isMatch = digest === record.digest
    const isRenamed = isMatch && (await renameIfThere(join(folder, name), join(folder, WHOLE)))
    if (isRenamed) await syncFolder(folder)
    // Never includes `whole`, so an upload that another server completed stays complete.
    const unused = [name, ...names].filter((file) => /\.(?:part|counts)$/.test(file))
    if (!isRenamed || names.length > 1) await Promise.all(unused.map((file) => unlinkIfThere(join(folder, file))))
    if (isRenamed) return toState(record, { isComplete: true, offset: record.bytes })
    throw isMatch ? removed(record) : differs(record, digest)
  }

  #remember(uploadId: string, own: OwnSegment): void {
    this.#ownSegments.delete(uploadId)
    this.#ownSegments.set(uploadId, own)
    if (this.#ownSegments.size > MAX_OWN_SEGMENTS)
      this.#ownSegments.delete(this.#ownSegments.keys().next().value as string)
  }
}

function gap(record: UploadRecord, stored: number, offset: number): RolloutError {
  const message = `Upload ${record.uploadId} ends at byte ${stored}, so a part at ${offset} does not fit; get the offset and continue from it.`
  return new RolloutError('request.conflict', message, { param: 'query.offset' })
}

function removed(record: UploadRecord): RolloutError {
  const message = `Upload ${record.uploadId} was reset or removed meanwhile; begin it again.`
  return new RolloutError('request.conflict', message)
}

function differs(record: UploadRecord, digest: string): RolloutError {
  const message = `Upload ${record.uploadId} has all ${record.bytes} bytes, but their digest is ${digest} and not ${record.digest}; send it again from byte 0.`
  return new RolloutError('request.conflict', message)
}
