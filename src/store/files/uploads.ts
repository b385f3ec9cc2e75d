import { randomBytes } from 'node:crypto'
import { readdir, readFile, rm, stat, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { RolloutError } from '../../model/failure.ts'
import type { UploadInput, UploadState } from '../files.ts'
import { type AssertRoom, FILE_MODE, makeFolder, makeFolders, renameIfThere, unless } from './disk.ts'
import { assertInput, keptMarker, uploadFolder, uploadIdOf } from './layout.ts'
import { type Lane, type Received, readReceived } from './segments.ts'

/** An upload as it is written down. `path` is there once it was kept. */
export interface UploadRecord extends UploadInput {
  uploadId: string
  path?: string
}

export interface UploadLimits {
  maxUploadBytes: number
  maxOpenUploads: number
}

/** Counting the uploads of a node means reading a folder, which may be a long one. */
const COUNT_AGAIN_MS = 5000

/** Finds out what there is of uploads, and begins new ones. */
export class UploadBook {
  readonly #dir: string
  readonly #limits: UploadLimits
  readonly #assertRoom: AssertRoom
  readonly #now: () => number
  readonly #open = new Map<string, { count: number; at: number }>()

  constructor(dir: string, limits: UploadLimits, assertRoom: AssertRoom, now: () => number) {
    this.#dir = dir
    this.#limits = limits
    this.#assertRoom = assertRoom
    this.#now = now
  }

  async begin(input: UploadInput): Promise<{ record: UploadRecord; isNew: boolean }> {
    assertInput(input)
    const { nodeId, sessionId, attempt, bytes, digest } = input
    const record = { uploadId: uploadIdOf(input), nodeId, sessionId, attempt, bytes, digest }
    const known = await this.load(nodeId, record.uploadId)
    if (known !== undefined) return { record: known, isNew: false }
    if (bytes > this.#limits.maxUploadBytes) {
      const message = `An upload may have ${this.#limits.maxUploadBytes} bytes; this one has ${bytes}.`
      throw new RolloutError('request.too-large', message, { param: 'body.bytes' })
    }
    await this.#assertRoom(bytes)
    await this.#countIn(nodeId)
    return { record, isNew: await this.#create(record) }
  }

  /** Undefined: it was never begun, or swept. */
  async load(nodeId: string, uploadId: string): Promise<UploadRecord | undefined> {
    const open = await this.#read(join(uploadFolder(nodeId, uploadId), 'meta.json'))
    if (open !== undefined) return open
    const kept = await this.#read(keptMarker(nodeId, uploadId))
    if (kept?.path === undefined) return undefined
    // Whoever removed the file wants it no more; it may be sent again.
    const isThere = await stat(join(this.#dir, kept.path)).catch(unless('ENOENT', 'ENOTDIR'))
    return isThere === undefined ? undefined : kept
  }

  async look(record: UploadRecord, own?: Lane): Promise<Received | undefined> {
    return readReceived(this.folderOf(record), own)
  }

  folderOf({ nodeId, uploadId }: UploadRecord): string {
    return join(this.#dir, uploadFolder(nodeId, uploadId))
  }

  /** Makes its folder with all that is in it appear at once. Another server that was quicker wrote the same: false. */
  async #create(record: UploadRecord): Promise<boolean> {
    const made = join(this.#dir, 'tmp', `upload-${randomBytes(12).toString('hex')}`)
    await makeFolder(made)
    try {
      await writeFile(join(made, 'meta.json'), JSON.stringify(record), { flag: 'wx', mode: FILE_MODE })
      // The node's own folder is not there yet, or was swept because it was empty.
      for (let tries = 3; !(await renameIfThere(made, this.folderOf(record))); tries--) {
        if (tries === 0) throw new Error(`the folder of node ${record.nodeId} goes away as soon as it is made`)
        await makeFolders(this.#dir, `uploads/${record.nodeId}`)
      }
      return true
    } catch (error) {
      await rm(made, { recursive: true, force: true })
      unless('EEXIST', 'ENOTEMPTY')(error)
      return false
    }
  }

  async #countIn(nodeId: string): Promise<void> {
    const known = this.#open.get(nodeId)
    const isFresh = known !== undefined && this.#now() - known.at < COUNT_AGAIN_MS
    const names = isFresh ? undefined : await readdir(join(this.#dir, 'uploads', nodeId)).catch(unless('ENOENT'))
    const count = isFresh ? known.count : (names?.length ?? 0)
    if (count >= this.#limits.maxOpenUploads) {
      const message =
        `Node ${nodeId} has begun ${count} uploads that no session was completed with, which is as many as it may; ` +
        'complete some, or wait until they are swept.'
      throw new RolloutError('request.over-quota', message, { retryAfterSeconds: 60 })
    }
    if (this.#open.size > 10_000) this.#open.clear()
    this.#open.set(nodeId, { count: count + 1, at: isFresh ? known.at : this.#now() })
  }

  async #read(path: string): Promise<UploadRecord | undefined> {
    const text = await readFile(join(this.#dir, path), 'utf8').catch(unless('ENOENT'))
    if (text === undefined) return undefined
    try {
      return JSON.parse(text) as UploadRecord
    } catch {
      // Cut by a loss of power before anything of the upload was called stored: as if it had never begun.
      return undefined
    }
  }
}

export function toState(record: UploadRecord, received: Pick<Received, 'isComplete' | 'offset'>): UploadState {
  const { uploadId, nodeId, sessionId, attempt, bytes, digest } = record
  const offset = received.isComplete ? bytes : received.offset
  return { uploadId, nodeId, sessionId, attempt, bytes, digest, offset, isComplete: received.isComplete }
}
