import { randomBytes } from 'node:crypto'
import { readdir, readFile, rm, stat, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { ignoreErrno } from '../../lib/fs/errno.ts'
import { parseJson } from '../../lib/json/json-text.ts'
import { RolloutError } from '../../model/failure.ts'
import type { UploadInput, UploadState } from './types.ts'
import { type AssertFreeSpace, FILE_MODE, makeFolder, makeFolders, renameIfThere } from './disk.ts'
import { assertInput, keptMarker, uploadFolder, uploadIdOf } from './layout.ts'
import { type OwnSegment, type Received, readReceived } from './segments.ts'

/** Stored form of an upload. `path`: final path, present after `keep`. */
export interface UploadRecord extends UploadInput {
  uploadId: string
  path?: string
}

export interface UploadLimits {
  maxUploadBytes: number
  maxOpenUploads: number
}

/** Counting the uploads of a node reads a folder, which may be large. */
const RECOUNT_MS = 5000

/** Reads and creates uploads. */
export class UploadTable {
  readonly #dir: string
  readonly #limits: UploadLimits
  readonly #assertFreeSpace: AssertFreeSpace
  readonly #now: () => number
  readonly #open = new Map<string, { count: number; at: number }>()

  constructor(dir: string, limits: UploadLimits, assertFreeSpace: AssertFreeSpace, now: () => number) {
    this.#dir = dir
    this.#limits = limits
    this.#assertFreeSpace = assertFreeSpace
    this.#now = now
  }

  async begin(input: UploadInput): Promise<{ record: UploadRecord; isNew: boolean }> {
    assertInput(input)
    const { nodeId, sessionId, attempt, bytes, digest } = input
    const record = { uploadId: uploadIdOf(input), nodeId, sessionId, attempt, bytes, digest }
    const known = await this.load(nodeId, record.uploadId)
    if (known !== undefined) return { record: known, isNew: false }
    if (bytes > this.#limits.maxUploadBytes) {
      const message = `The upload has ${bytes} bytes; the limit is ${this.#limits.maxUploadBytes}.`
      throw new RolloutError('request.too-large', message, { param: 'body.bytes' })
    }
    await this.#assertFreeSpace(bytes)
    await this.#countOpen(nodeId)
    return { record, isNew: await this.#create(record) }
  }

  /** Undefined if the upload was never begun, or was removed. */
  async load(nodeId: string, uploadId: string): Promise<UploadRecord | undefined> {
    const open = await this.#read(join(uploadFolder(nodeId, uploadId), 'meta.json'))
    if (open !== undefined) return open
    const kept = await this.#read(keptMarker(nodeId, uploadId))
    if (kept?.path === undefined) return undefined
    // If the file was removed, it may be uploaded again.
    const file = await stat(join(this.#dir, kept.path)).catch(ignoreErrno('ENOENT', 'ENOTDIR'))
    return file === undefined ? undefined : kept
  }

  async readReceived(record: UploadRecord, own?: OwnSegment): Promise<Received | undefined> {
    return readReceived(this.folderOf(record), own)
  }

  folderOf({ nodeId, uploadId }: UploadRecord): string {
    return join(this.#dir, uploadFolder(nodeId, uploadId))
  }

  /** Creates the folder with its contents atomically. False if another server created the same upload first. */
  async #create(record: UploadRecord): Promise<boolean> {
    const temporary = join(this.#dir, 'tmp', `upload-${randomBytes(12).toString('hex')}`)
    await makeFolder(temporary)
    try {
      await writeFile(join(temporary, 'meta.json'), JSON.stringify(record), { flag: 'wx', mode: FILE_MODE })
      // The folder of the node does not exist yet, or was swept because it was empty.
      for (let tries = 3; !(await renameIfThere(temporary, this.folderOf(record))); tries--) {
        if (tries === 0) throw new Error(`the folder of node ${record.nodeId} is removed as soon as it is created`)
        await makeFolders(this.#dir, `uploads/${record.nodeId}`)
      }
      return true
    } catch (error) {
      await rm(temporary, { recursive: true, force: true })
      ignoreErrno('EEXIST', 'ENOTEMPTY')(error)
      return false
    }
  }

  async #countOpen(nodeId: string): Promise<void> {
    const known = this.#open.get(nodeId)
    const isFresh = known !== undefined && this.#now() - known.at < RECOUNT_MS
    const names = isFresh ? undefined : await readdir(join(this.#dir, 'uploads', nodeId)).catch(ignoreErrno('ENOENT'))
    const count = isFresh ? known.count : (names?.length ?? 0)
    if (count >= this.#limits.maxOpenUploads) {
      const message =
        `Node ${nodeId} has ${count} uploads that no completed session uses, which is the limit; ` +
        'complete some sessions, or wait until the uploads expire.'
      throw new RolloutError('request.over-quota', message, { retryAfterSeconds: 60 })
    }
    if (this.#open.size > 10_000) this.#open.clear()
    this.#open.set(nodeId, { count: count + 1, at: isFresh ? known.at : this.#now() })
  }

  async #read(path: string): Promise<UploadRecord | undefined> {
    const text = await readFile(join(this.#dir, path), 'utf8').catch(ignoreErrno('ENOENT'))
    // A loss of power before any part was acknowledged truncates the file: the upload counts as never begun.
    return parseJson(text ?? '') as UploadRecord | undefined
  }
}

export function toState(record: UploadRecord, received: Pick<Received, 'isComplete' | 'offset'>): UploadState {
  const { uploadId, nodeId, sessionId, attempt, bytes, digest } = record
  const offset = received.isComplete ? bytes : received.offset
  return { uploadId, nodeId, sessionId, attempt, bytes, digest, offset, isComplete: received.isComplete }
}
