import { createHash } from 'node:crypto'
import { constants, open, type FileHandle } from 'node:fs/promises'
import { join } from 'node:path'
import type { Client } from '../../client/client.ts'
import { uploadFile } from '../../client/upload.ts'
import { ignoreErrno } from '../../lib/fs/errno.ts'
import { RolloutError } from '../../model/failure.ts'
import type { SessionOutcome } from '../../model/session-outcome.ts'
import type { SessionFolder } from '../session/session-folder.ts'
import type { UploadPolicy } from './policies.ts'
import { BrokenResult } from './server-errors.ts'

export interface ResultClient extends Pick<Client, 'beginUpload' | 'getUpload' | 'putPart' | 'completeSession'> {
  /** Results up to this size are sent with the completion request; 0: the server does not support that. */
  inlineBytes: number
}

export interface ResultDelivery {
  nodeId: string
  outcome: SessionOutcome
  folder: SessionFolder
  uploads: UploadPolicy
  /** False: the result is lost, and the outcome contains the reason. */
  withResult: boolean
  partBytes: number
  signal: AbortSignal
}

/**
 * Sends the result of a session to the server, with its artifacts and call log. Resolves when the server has stored it.
 * Idempotent; continues the uploads of earlier attempts, also those of an earlier process.
 */
export async function deliverResult(client: ResultClient, delivery: ResultDelivery): Promise<void> {
  const { outcome, folder, uploads, nodeId, withResult, signal } = delivery
  const hasFailed = outcome.status !== 'COMPLETED'
  const short = withResult ? await readShort(folder.result, client.inlineBytes) : undefined
  const uploadResult = async (): Promise<ResultFields> => {
    const id = withResult ? await upload(client, folder.result, delivery) : undefined
    // With `store.unavailable` the outcome itself reports that the result could not be written.
    if (withResult && id === undefined && outcome.failure?.code !== 'store.unavailable') throw missing(folder.result)
    return { result_upload_id: id }
  }
  const result = short === undefined ? await uploadResult() : { result: short.toString('base64') }
  const artifacts: { path: string; upload_id: string }[] = []
  const send = async (path: string, source: string): Promise<void> => {
    const id = await upload(client, source, delivery)
    if (id !== undefined) artifacts.push({ path, upload_id: id })
  }
  if (isSent(uploads.artifacts, hasFailed)) {
    for (const { path } of outcome.artifacts) await send(path, join(folder.artifacts, path))
  }
  // If the result is lost, the call log is the only record of the session.
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
    // The server may have been replaced by an earlier version, which does not support inline results.
    if (short === undefined || !isInlineRefused(error)) throw error
    await complete(await uploadResult())
  }
}

interface ResultFields {
  result?: string
  result_upload_id?: string
}

function isInlineRefused(error: unknown): boolean {
  return error instanceof RolloutError && (error.failure.status === 422 || error.failure.status === 413)
}

/** Reads a whole file. Undefined if the file is larger than `maxBytes` or does not exist. */
async function readShort(path: string, maxBytes: number): Promise<Buffer | undefined> {
  if (maxBytes === 0) return undefined
  const file = await openIfExists(path)
  if (file === undefined) return undefined
  try {
    const bytes = Buffer.allocUnsafe(maxBytes + 1)
    for (let length = 0; length <= maxBytes;) {
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

/** Uploads a file; at most one part is in memory. Undefined if the file does not exist. */
async function upload(
  client: ResultClient,
  path: string,
  { nodeId, outcome, partBytes, signal }: ResultDelivery,
): Promise<string | undefined> {
  const file = await openIfExists(path)
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

function openIfExists(path: string): Promise<FileHandle | undefined> {
  return open(path, constants.O_RDONLY | constants.O_NOFOLLOW).catch(ignoreErrno('ENOENT'))
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
    if (bytesRead === 0) throw new BrokenResult(`${path} became shorter during the upload.`)
    done += bytesRead
  }
  return part
}

function missing(path: string): BrokenResult {
  return new BrokenResult(`${path} does not exist, although the session has ended. It may have been removed.`)
}
