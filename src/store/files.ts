import { resolve } from 'node:path'
import type { Clock } from '../lib/async/clock.ts'
import { makeDirectories } from '../lib/fs/make-directories.ts'
import { RolloutError } from '../model/failure.ts'
import type { ResultReference } from './dispatch/types.ts'
import { Appender } from './files/append.ts'
import { createAssertFreeSpace, makeFolders, onDisk } from './files/disk.ts'
import { keepUpload, putResult } from './files/keep.ts'
import { assertDigest, FOLDERS } from './files/layout.ts'
import { openKept } from './files/read-file.ts'
import { removeKept } from './files/remove.ts'
import { sweepUnknown, sweepUploads } from './files/sweep.ts'
import type { KeepAs, OpenFile, UploadInput, UploadState } from './files/types.ts'
import { toState, type UploadRecord, UploadTable } from './files/uploads.ts'

export type { UploadState } from './files/types.ts'

/**
 * Results, artifacts and unfinished uploads, in a directory that any number of servers may share. Stored data is on disk when a
 * method resolves. Does not check permissions.
 */
export interface FileStore {
  /** The same input returns the same upload, also after `keep`. Throws `request.over-quota`, `store.unavailable`. */
  begin(input: UploadInput): Promise<UploadState>
  find(nodeId: string, uploadId: string): Promise<UploadState | undefined>
  /**
   * Stores the whole body or nothing. Throws `request.not-found`; `request.conflict` if the part does not start at the offset of
   * the upload, or the complete file does not match its digest; `request.malformed` if the part does not match its digest.
   */
  append(
    nodeId: string,
    uploadId: string,
    offset: number,
    body: ReadableStream<Uint8Array>,
    digest?: string,
  ): Promise<UploadState>
  /** Moves a complete upload to its final path. A repeated call, also of another server, returns the same reference. */
  keep(nodeId: string, uploadId: string, as: KeepAs): Promise<ResultReference>
  /** Stores a result that was not uploaded in parts. */
  put(sessionId: string, attempt: number, bytes: Uint8Array): Promise<ResultReference>
  /** The caller must read the stream to its end or cancel it. Throws `request.not-found`, or `request.malformed` with 416. */
  open(path: string, range?: { offset: number; length?: number }): Promise<OpenFile>
  /** Removes results and artifacts; missing files are ignored. */
  remove(paths: readonly string[]): Promise<void>
  /** Removes uploads without progress for this time, and temporary files of crashes. Returns the number of uploads. */
  sweep(olderThanMs: number): Promise<number>
  /** Removes results and artifacts older than this that `findKnown` does not return. Returns their number. */
  sweepKept(olderThanMs: number, findKnown: (paths: readonly string[]) => Promise<ReadonlySet<string>>): Promise<number>
}

export interface FileStoreOptions {
  dir: string
  /** `now` is compared with modification times of files. */
  clock: Clock
  /** Size limit of one upload. Default 64 GiB. */
  maxUploadBytes?: number
  /** Limit on unfinished uploads of one node. Default 20 000: two sessions with the maximum number of artifacts. */
  maxOpenUploads?: number
  /** Space that stays free on the disk. Default 1 GiB. */
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
  const assertFreeSpace = createAssertFreeSpace(dir, minFreeBytes, now)
  const uploads = new UploadTable(dir, { maxUploadBytes, maxOpenUploads }, assertFreeSpace, now)
  const appender = new Appender({ dir, uploads, clock, assertFreeSpace })
  const find = async (nodeId: string, uploadId: string): Promise<UploadState | undefined> => {
    const record = await uploads.load(nodeId, uploadId)
    return record === undefined ? undefined : await stateOf(record)
  }
  const stateOf = async (record: UploadRecord): Promise<UploadState | undefined> => {
    const received = record.path === undefined ? await uploads.readReceived(record) : { isComplete: true, offset: 0 }
    return received === undefined ? undefined : toState(record, received)
  }
  const load = async (nodeId: string, uploadId: string): Promise<UploadRecord> => {
    const record = await uploads.load(nodeId, uploadId)
    if (record === undefined) throw unknownUpload(nodeId, uploadId)
    return record
  }
  return {
    begin: (input) =>
      onDisk('The upload could not be started', async () => {
        const { record, isNew } = await uploads.begin(input)
        const found = isNew ? undefined : await stateOf(record)
        return found ?? toState(record, { isComplete: false, offset: 0 })
      }),
    find: (nodeId, uploadId) => onDisk('The upload could not be read', () => find(nodeId, uploadId)),
    async append(nodeId, uploadId, offset, body, digest) {
      if (digest !== undefined) assertDigest(digest)
      const record = await onDisk('The upload could not be read', () => load(nodeId, uploadId))
      return await appender.append(record, { offset, body, digest })
    },
    keep: (nodeId, uploadId, as) =>
      onDisk('The upload could not be stored', async () => {
        for (let tries = 0; tries < 3; tries++) {
          const reference = await keepUpload(dir, uploads, await load(nodeId, uploadId), as)
          if (reference !== undefined) return reference
        }
        throw unknownUpload(nodeId, uploadId)
      }),
    put: (sessionId, attempt, bytes) =>
      onDisk('A result could not be stored', async () => {
        await assertFreeSpace(bytes.length)
        return await putResult(dir, sessionId, attempt, bytes)
      }),
    open: (path, range) => onDisk('A file could not be read', () => openKept(dir, path, range)),
    remove: (paths) => onDisk('Files could not be removed', () => removeKept(dir, paths)),
    sweep: (olderThanMs) =>
      onDisk('Old uploads could not be removed', () => sweepUploads(dir, clock.now() - olderThanMs)),
    sweepKept: (olderThanMs, findKnown) =>
      onDisk('Old files could not be removed', () => sweepUnknown(dir, clock.now() - olderThanMs, findKnown)),
  }
}

function unknownUpload(nodeId: string, uploadId: string): RolloutError {
  const message = `Node ${nodeId} has no upload ${uploadId}; it was removed or never begun. Begin it again.`
  return new RolloutError('request.not-found', message)
}
