import { createHash } from 'node:crypto'
import { join } from 'node:path'
import type { Clock } from '../../lib/async/clock.ts'
import { errnoOf } from '../../lib/fs/errno.ts'
import { RolloutError } from '../../model/failure.ts'
import type { UploadState } from '../files.ts'
import { digestOf, joinSegments } from './complete.ts'
import {
  APPEND,
  type AssertRoom,
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
import { chainOf, countsOf, type Lane, newSegmentName, type Received, WHOLE } from './segments.ts'
import { type Turn, Turns } from './file-mutex.ts'
import { toState, type UploadBook, type UploadRecord } from './uploads.ts'

/** Lanes that are remembered; a forgotten one costs a copy when its upload is complete. */
const MOST_LANES = 4096

export interface AppendDeps {
  dir: string
  book: UploadBook
  clock: Clock
  assertRoom: AssertRoom
}

/** Takes parts. What it counts is on disk; what it calls complete has been hashed, and nobody can write to it any more. */
export class Appender {
  readonly #deps: AppendDeps
  readonly #turns: Turns
  readonly #lanes = new Map<string, Lane>()

  constructor(deps: AppendDeps) {
    this.#deps = deps
    this.#turns = new Turns(deps.clock)
  }

  async append(
    record: UploadRecord,
    offset: number,
    body: ReadableStream<Uint8Array>,
    digest: string | undefined,
  ): Promise<UploadState> {
    using turn = await this.#turns.take(record.uploadId)
    try {
      return await onDisk('A part of an upload could not be stored', () =>
        this.#take(record, offset, body, digest, turn),
      )
    } catch (error) {
      // Its folder went away under us.
      if (error instanceof RolloutError && errnoOf(error.cause) === 'ENOENT') throw gone(record)
      throw error
    }
  }

  async #take(
    record: UploadRecord,
    offset: number,
    body: ReadableStream<Uint8Array>,
    digest: string | undefined,
    turn: Turn,
  ): Promise<UploadState> {
    const received = await this.#look(record)
    if (received.isComplete || offset < received.offset) {
      return await this.#skip(record, received, offset, body, turn)
    }
    if (offset > received.offset) {
      await skipBody(body, turn)
      throw gap(record, received.offset, offset)
    }
    if (offset === record.bytes && record.bytes > 0) {
      // All was here already, and a crash came before the digest was looked at.
      if ((await skipBody(body, turn)) > 0) throw gap(record, received.offset, offset)
      return await this.#complete(record, turn)
    }
    return await this.#extend(record, received, body, digest, turn)
  }

  /** With what this process knows better than the disk does. */
  async #look(record: UploadRecord): Promise<Received> {
    if (record.path !== undefined) return { isComplete: true, offset: 0, segments: [], names: [] }
    const lane = this.#lanes.get(record.uploadId)
    const received = await this.#deps.book.look(record, lane)
    if (received === undefined) throw gone(record)
    if (lane !== undefined && !received.names.includes(lane.name)) this.#lanes.delete(record.uploadId)
    return received
  }

  /** A part that is here already changes nothing. One that is here in part does not begin where the upload ends. */
  async #skip(
    record: UploadRecord,
    received: Received,
    offset: number,
    body: ReadableStream<Uint8Array>,
    turn: Turn,
  ): Promise<UploadState> {
    const state = toState(record, received)
    const skipped = await skipBody(body, turn)
    if (offset + skipped > state.offset) throw gap(record, state.offset, offset)
    return state
  }

  async #extend(
    record: UploadRecord,
    { offset, names }: Received,
    body: ReadableStream<Uint8Array>,
    digest: string | undefined,
    turn: Turn,
  ): Promise<UploadState> {
    await this.#deps.assertRoom(0)
    const folder = this.#deps.book.folderOf(record)
    const known = this.#lanes.get(record.uploadId)
    const isNew = known === undefined || known.end !== offset
    const hash = offset === 0 ? createHash('sha256') : isNew ? undefined : known.hash?.copy()
    const name = isNew ? newSegmentName(offset) : known.name
    const start = isNew ? offset : known.start
    const end = await withFile(join(folder, name), isNew ? CREATE : CHANGE, async (file) => {
      const place = { file, position: offset - start, maxBytes: record.bytes - offset, hash, digest }
      const bytes = await receivePart(body, place, turn)
      // What an earlier part left that was cut off.
      if (!isNew) await file.truncate(offset - start + bytes)
      await Promise.all([file.datasync(), ...(isNew ? this.#syncRecord(record) : [])])
      return offset + bytes
    }).catch(async (error: unknown) => {
      // The lane goes on from its last count, unless syncing failed: what the system keeps of it then, nobody knows.
      if (isNew) await unlinkIfThere(join(folder, name))
      else if (!(error instanceof RolloutError)) this.#lanes.delete(record.uploadId)
      throw error
    })
    const lane = { name, start, end, hash }
    // One segment that this process received from its first byte: it is the file, and its hash is known.
    if (end === record.bytes && start === 0 && hash !== undefined)
      return await this.#finish(record, name, digestOf(hash), names)
    // Until it is counted it is not to be gone on with: behind half a line another one would be read as part of it.
    this.#lanes.delete(record.uploadId)
    await this.#count(folder, lane, isNew)
    this.#remember(record.uploadId, lane)
    return end === record.bytes
      ? await this.#complete(record, turn)
      : toState(record, { isComplete: false, offset: end })
  }

  /** A folder is found after a loss of power only if the one that holds it is on disk, too. */
  #syncRecord(record: UploadRecord): Promise<void>[] {
    const { dir, book } = this.#deps
    return [
      withFile(join(book.folderOf(record), 'meta.json'), READ, (file) => file.datasync()),
      syncFolder(join(dir, 'uploads', record.nodeId)),
    ]
  }

  async #count(folder: string, lane: Lane, isNew: boolean): Promise<void> {
    await withFile(join(folder, countsOf(lane.name)), APPEND, async (file) => {
      await file.writeFile(`${lane.end - lane.start}\n`)
      await file.datasync()
    })
    if (isNew) await syncFolder(folder)
  }

  /** From what is on disk: after a restart, or when several servers have received parts. */
  async #complete(record: UploadRecord, turn: Turn): Promise<UploadState> {
    const { segments, names } = await this.#look(record)
    const chain = chainOf(segments)
    const folder = this.#deps.book.folderOf(record)
    await this.#deps.assertRoom(record.bytes)
    // Read once, copied at the same time: it may have a writer of whom we know nothing, and a copy has none.
    const joined = await joinSegments(folder, chain, turn)
    return await this.#finish(record, joined.name, joined.digest, [...names, joined.name])
  }

  /** `names` are those that were there before: what is not needed any more, whichever way this ends. */
  async #finish(record: UploadRecord, name: string, digest: string, names: readonly string[]): Promise<UploadState> {
    const folder = this.#deps.book.folderOf(record)
    this.#lanes.delete(record.uploadId)
    const isRight = digest === record.digest
    const isPlaced = isRight && (await renameIfThere(join(folder, name), join(folder, WHOLE)))
    if (isPlaced) await syncFolder(folder)
    // `whole` is never among these, so an upload that another server completed stays complete.
    const left = [name, ...names].filter((one) => /\.(?:part|counts)$/.test(one))
    if (!isPlaced || names.length > 1) await Promise.all(left.map((one) => unlinkIfThere(join(folder, one))))
    if (isPlaced) return toState(record, { isComplete: true, offset: record.bytes })
    throw isRight ? gone(record) : differs(record, digest)
  }

  #remember(uploadId: string, lane: Lane): void {
    this.#lanes.delete(uploadId)
    this.#lanes.set(uploadId, lane)
    if (this.#lanes.size > MOST_LANES) this.#lanes.delete(this.#lanes.keys().next().value as string)
  }
}

function gap(record: UploadRecord, stored: number, offset: number): RolloutError {
  const message = `Upload ${record.uploadId} ends at byte ${stored}, so a part at ${offset} does not fit; ask for the offset and go on from there.`
  return new RolloutError('request.conflict', message, { param: 'query.offset' })
}

function gone(record: UploadRecord): RolloutError {
  const message = `Upload ${record.uploadId} was begun anew or swept meanwhile; begin it again.`
  return new RolloutError('request.conflict', message)
}

function differs(record: UploadRecord, digest: string): RolloutError {
  const message = `All ${record.bytes} bytes of upload ${record.uploadId} are here, but their digest is ${digest} and not ${record.digest}; it begins anew, from byte 0.`
  return new RolloutError('request.conflict', message)
}
