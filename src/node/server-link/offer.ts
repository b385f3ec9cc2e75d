import { createHash } from 'node:crypto'
import { constants, open, type FileHandle } from 'node:fs/promises'
import { join } from 'node:path'
import type { Client } from '../../client/client.ts'
import { uploadFile } from '../../client/upload.ts'
import { errnoOf } from '../../lib/fs/errno.ts'
import { RolloutError } from '../../model/failure.ts'
import type { SessionOutcome } from '../../model/session-outcome.ts'
import type { SessionFolder } from '../session/session-folder.ts'
import type { UploadPolicy } from './policies.ts'
import { BrokenResult } from './server-errors.ts'

export interface OfferClient extends Pick<Client, 'beginUpload' | 'getUpload' | 'putPart' | 'completeSession'> {
  /** Results that are no longer go with the completion; 0 where the server takes none that way. */
  inlineBytes: number
}

export interface Offer {
  nodeId: string
  outcome: SessionOutcome
  folder: SessionFolder
  uploads: UploadPolicy
  /** False: there is none that could be sent, and the outcome says why. */
  withResult: boolean
  partBytes: number
  signal: AbortSignal
}

/**
 * Brings one result to the server, with what goes with it. When this resolves the server has it for good. It begins where
 * an earlier try ended, also one of an earlier process; doing it twice is doing it once.
 */
export async function offer(client: OfferClient, given: Offer): Promise<void> {
  const { outcome, folder, uploads, nodeId, withResult, signal } = given
  const hasFailed = outcome.status !== 'COMPLETED'
  const short = withResult ? await readShort(folder.result, client.inlineBytes) : undefined
  const uploadResult = async (): Promise<ResultFields> => {
    const id = withResult ? await upload(client, folder.result, given) : undefined
    // One that could not even be written says so itself.
    if (withResult && id === undefined && outcome.failure?.code !== 'store.unavailable') throw missing(folder.result)
    return id === undefined ? {} : { result_upload_id: id }
  }
  const result = short === undefined ? await uploadResult() : { result: short.toString('base64') }
  const artifacts: { path: string; upload_id: string }[] = []
  const send = async (path: string, place: string): Promise<void> => {
    const id = await upload(client, place, given)
    if (id !== undefined) artifacts.push({ path, upload_id: id })
  }
  if (isSent(uploads.artifacts, hasFailed)) {
    for (const { path } of outcome.artifacts) await send(path, join(folder.artifacts, path))
  }
  // Of a result that cannot be had the calls are all there is.
  if (isSent(uploads.callLog, hasFailed) && (!withResult || (outcome.counts?.turns ?? 0) > 0)) {
    await send('calls.plog', join(folder.path, 'calls.plog'))
  }
  const complete = async (fields: ResultFields): Promise<void> => {
    const body = { outcome, ...fields, artifacts }
    await client.completeSession({ params: { node_id: nodeId }, body, signal })
  }
  try {
    await complete(result)
  } catch (error) {
    // A server of an earlier version may have taken the place of the one that we joined, and does not know this way.
    if (short === undefined || !isRefusedForm(error)) throw error
    await complete(await uploadResult())
  }
}

interface ResultFields {
  result?: string
  result_upload_id?: string
}

function isRefusedForm(error: unknown): boolean {
  return error instanceof RolloutError && (error.failure.status === 422 || error.failure.status === 413)
}

/** All of a file that is no longer than this; undefined when it is, or there is none. */
async function readShort(path: string, most: number): Promise<Buffer | undefined> {
  if (most === 0) return undefined
  const file = await openIfThere(path)
  if (file === undefined) return undefined
  try {
    const bytes = Buffer.allocUnsafe(most + 1)
    for (let length = 0; length <= most;) {
      const { bytesRead } = await file.read(bytes, length, bytes.length - length, length)
      if (bytesRead === 0) return bytes.subarray(0, length)
      length += bytesRead
    }
    return undefined
  } finally {
    await file.close()
  }
}

function isSent(which: UploadPolicy['artifacts'], hasFailed: boolean): boolean {
  return which === 'all' || (which === 'failures' && hasFailed)
}

/** Undefined when there is no such file. Never holds more of it than one part. */
async function upload(
  client: OfferClient,
  path: string,
  { nodeId, outcome, partBytes, signal }: Offer,
): Promise<string | undefined> {
  const file = await openIfThere(path)
  if (file === undefined) return undefined
  try {
    const { bytes, digest } = await digestOf(file)
    const { upload_id } = await uploadFile(client, {
      nodeId,
      sessionId: outcome.sessionId,
      attempt: outcome.attempt,
      bytes,
      digest,
      partBytes,
      signal,
      read: (offset, length) => readExactly(file, path, { offset, length }),
    })
    return upload_id
  } finally {
    await file.close()
  }
}

async function openIfThere(path: string): Promise<FileHandle | undefined> {
  try {
    return await open(path, constants.O_RDONLY | constants.O_NOFOLLOW)
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return undefined
    throw error
  }
}

const PIECE_BYTES = 256 * 1024

async function digestOf(file: FileHandle): Promise<{ bytes: number; digest: string }> {
  const hash = createHash('sha256')
  const piece = Buffer.allocUnsafe(PIECE_BYTES)
  let bytes = 0
  for (;;) {
    const { bytesRead } = await file.read(piece, 0, piece.length, bytes)
    if (bytesRead === 0) return { bytes, digest: `sha256:${hash.digest('hex')}` }
    hash.update(piece.subarray(0, bytesRead))
    bytes += bytesRead
  }
}

async function readExactly(
  file: FileHandle,
  path: string,
  { offset, length }: { offset: number; length: number },
): Promise<Uint8Array<ArrayBuffer>> {
  const part = new Uint8Array(length)
  for (let done = 0; done < length;) {
    const { bytesRead } = await file.read(part, done, length - done, offset + done)
    if (bytesRead === 0) throw new BrokenResult(`${path} has become shorter while it was sent.`)
    done += bytesRead
  }
  return part
}

function missing(path: string): BrokenResult {
  return new BrokenResult(`There is no ${path}, though the session has ended; was it removed?`)
}
