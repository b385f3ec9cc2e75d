import { resolve } from 'node:path'
import type { Clock } from '../lib/async/clock.ts'
import { makeDirectories } from '../lib/fs/make-directories.ts'
import { RolloutError } from '../model/failure.ts'
import type { ResultReference } from './dispatch/port.ts'
import { Appender } from './files/append.ts'
import { createAssertRoom, makeFolders, onDisk } from './files/disk.ts'
import { keepUpload, putResult } from './files/keep.ts'
import { assertDigest, FOLDERS } from './files/layout.ts'
import { openKept } from './files/read-file.ts'
import { removeKept } from './files/remove.ts'
import { sweepUnknown, sweepUploads } from './files/sweep.ts'
import { toState, UploadBook, type UploadRecord } from './files/uploads.ts'

export interface UploadInput {
  nodeId: string
  sessionId: string
  attempt: number
  /** All of it, and the digest of all of it: `sha256:` and hexadecimal digits. */
  bytes: number
  digest: string
}

export interface UploadState extends UploadInput {
  uploadId: string
  /** How many bytes are safely on disk; the next part begins at this. */
  offset: number
  /** All bytes are here and their digest is right. */
  isComplete: boolean
}

export type KeepAs = { kind: 'result' } | { kind: 'artifact'; path: string }

export interface OpenFile {
  /** Of the stream. */
  bytes: number
  /** Of the whole file. */
  totalBytes: number
  stream: ReadableStream<Uint8Array>
}

/**
 * Results, artifacts and uploads under way, in a directory that any number of servers may share. What it says is stored
 * is on disk. It knows nothing of who may upload what.
 */
export interface FileStore {
  /** The same input is the same upload, also one that was kept. Throws `request.over-quota`, `store.unavailable`. */
  begin(input: UploadInput): Promise<UploadState>
  find(nodeId: string, uploadId: string): Promise<UploadState | undefined>
  /**
   * All of the body or nothing of it is counted. Throws `request.not-found`, `request.conflict` where the part does not
   * begin where the upload ends or the whole differs from its digest, `request.malformed` where the part differs from
   * its own.
   */
  append(
    nodeId: string,
    uploadId: string,
    offset: number,
    body: ReadableStream<Uint8Array>,
    digest?: string,
  ): Promise<UploadState>
  /** Puts a complete upload in its place for good. Again, or by another server: the same reference. */
  keep(nodeId: string, uploadId: string, as: KeepAs): Promise<ResultReference>
  /** A result in one piece. */
  put(sessionId: string, attempt: number, bytes: Uint8Array): Promise<ResultReference>
  /** Streams; cancel what is not read to its end. Throws `request.not-found`, or `request.malformed` with 416. */
  open(path: string, range?: { offset: number; length?: number }): Promise<OpenFile>
  /** Removes results and artifacts that no row names any more; those that are not there are as good as removed. */
  remove(paths: readonly string[]): Promise<void>
  /** Removes uploads that nobody added to for so long, and what crashes left behind. How many uploads it were. */
  sweep(olderThanMs: number): Promise<number>
  /** Removes results and artifacts, written so long ago, that nobody knows. `isKnown` gives those that are known. */
  sweepKept(olderThanMs: number, isKnown: (paths: readonly string[]) => Promise<ReadonlySet<string>>): Promise<number>
}

export interface FileStoreOptions {
  dir: string
  /** `now` is compared with the times of files. */
  clock: Clock
  /** Of one upload. Default 64 GiB. */
  maxUploadBytes?: number
  /** Of one node, begun and not kept. Default 20 000: two sessions with all the artifacts that one may have. */
  maxOpenUploads?: number
  /** What is left free on the disk. Default 1 GiB. */
  minFreeBytes?: number
}

const GIB = 2 ** 30

export async function openFileStore(options: FileStoreOptions): Promise<FileStore> {
  const { clock, maxUploadBytes = 64 * GIB, maxOpenUploads = 20_000, minFreeBytes = GIB } = options
  const dir = resolve(options.dir)
  await onDisk(`The directory ${dir} cannot be used for files`, async () => {
    await makeDirectories(dir, 0o700)
    await Promise.all(FOLDERS.map((folder) => makeFolders(dir, folder)))
  })
  const now = (): number => clock.now()
  const assertRoom = createAssertRoom(dir, minFreeBytes, now)
  const book = new UploadBook(dir, { maxUploadBytes, maxOpenUploads }, assertRoom, now)
  const appender = new Appender({ dir, book, clock, assertRoom })
  const find = async (nodeId: string, uploadId: string): Promise<UploadState | undefined> => {
    const record = await book.load(nodeId, uploadId)
    return record === undefined ? undefined : await stateOf(record)
  }
  const stateOf = async (record: UploadRecord): Promise<UploadState | undefined> => {
    const received = record.path === undefined ? await book.look(record) : { isComplete: true, offset: 0 }
    return received === undefined ? undefined : toState(record, received)
  }
  const load = async (nodeId: string, uploadId: string): Promise<UploadRecord> => {
    const record = await book.load(nodeId, uploadId)
    if (record === undefined) throw unknownUpload(nodeId, uploadId)
    return record
  }
  return {
    begin: (input) =>
      onDisk('An upload could not be begun', async () => {
        const { record, isNew } = await book.begin(input)
        const found = isNew ? undefined : await stateOf(record)
        return found ?? toState(record, { isComplete: false, offset: 0 })
      }),
    find: (nodeId, uploadId) => onDisk('An upload could not be looked at', () => find(nodeId, uploadId)),
    async append(nodeId, uploadId, offset, body, digest) {
      if (digest !== undefined) assertDigest(digest)
      const record = await onDisk('An upload could not be looked at', () => load(nodeId, uploadId))
      return await appender.append(record, offset, body, digest)
    },
    keep: (nodeId, uploadId, as) =>
      onDisk('An upload could not be kept', async () => {
        for (let tries = 0; tries < 3; tries++) {
          const reference = await keepUpload(dir, book, await load(nodeId, uploadId), as)
          if (reference !== undefined) return reference
        }
        throw unknownUpload(nodeId, uploadId)
      }),
    put: (sessionId, attempt, bytes) =>
      onDisk('A result could not be stored', async () => {
        await assertRoom(bytes.length)
        return await putResult(dir, sessionId, attempt, bytes)
      }),
    open: (path, range) => onDisk('A file could not be read', () => openKept(dir, path, range)),
    remove: (paths) => onDisk('Files could not be removed', () => removeKept(dir, paths)),
    sweep: (olderThanMs) =>
      onDisk('Old uploads could not be removed', () => sweepUploads(dir, clock.now() - olderThanMs)),
    sweepKept: (olderThanMs, isKnown) =>
      onDisk('Old files could not be removed', () => sweepUnknown(dir, clock.now() - olderThanMs, isKnown)),
  }
}

function unknownUpload(nodeId: string, uploadId: string): RolloutError {
  const message = `Node ${nodeId} has no upload ${uploadId}; it was swept, or never begun. Begin it again.`
  return new RolloutError('request.not-found', message)
}
