import { createHash } from 'node:crypto'
import { RolloutError } from '../../model/failure.ts'
import { isId } from '../../model/ids.ts'
import type { KeepAs, UploadInput } from './types.ts'

/**
 * Paths relative to the store's directory:
 *
 *     uploads/<node>/<upload>/   meta.json, its segments, and `whole` once it is complete
 *     kept/<node>/<upload>.json  final path of an upload, for repeated requests
 *     results/<2 hex>/<session>.<attempt>.json.zst
 *     artifacts/<2 hex>/<session>.<attempt>/<path>
 *     tmp/                       files and folders that are being created
 */
export const FOLDERS = ['uploads', 'kept', 'results', 'artifacts', 'tmp'] as const

/** Derived from all fields of an upload, so that every server computes the same id. */
export function uploadIdOf({ nodeId, sessionId, attempt, bytes, digest }: UploadInput): string {
  const hash = createHash('sha256').update(JSON.stringify([nodeId, sessionId, attempt, bytes, digest]))
  return `upl_${hash.digest('hex').slice(0, 40)}`
}

export function uploadFolder(nodeId: string, uploadId: string): string {
  assertId(nodeId, 'node_id')
  assertId(uploadId, 'upload_id')
  return `uploads/${nodeId}/${uploadId}`
}

export function keptMarker(nodeId: string, uploadId: string): string {
  assertId(nodeId, 'node_id')
  assertId(uploadId, 'upload_id')
  return `kept/${nodeId}/${uploadId}.json`
}

/** `other`: used if `usual` exists with different bytes, or is not a valid name on this disk. */
export function pathsOf(
  { sessionId, attempt, digest }: Pick<UploadInput, 'sessionId' | 'attempt' | 'digest'>,
  as: KeepAs,
): { usual: string; other: string } {
  const name = `${shardOf(sessionId)}/${sessionId}.${attempt}`
  const hex = digest.slice('sha256:'.length)
  if (as.kind === 'result') {
    return { usual: `results/${name}.json.zst`, other: `results/${name}.${hex.slice(0, 16)}.json.zst` }
  }
  assertPath(as.path)
  return { usual: `artifacts/${name}/${as.path}`, other: `artifacts/${name}.other/${hex}` }
}

function shardOf(sessionId: string): string {
  assertId(sessionId, 'session_id')
  return createHash('sha256').update(sessionId).digest('hex').slice(0, 2)
}

const DIGEST = /^sha256:[0-9a-f]{64}$/

export function assertInput(input: UploadInput): void {
  assertId(input.nodeId, 'node_id')
  assertId(input.sessionId, 'session_id')
  if (!Number.isSafeInteger(input.attempt) || input.attempt < 1) throw malformed('attempt', 'a positive integer')
  if (!Number.isSafeInteger(input.bytes) || input.bytes < 0) throw malformed('bytes', 'a number of bytes')
  assertDigest(input.digest)
}

export function assertDigest(digest: string): void {
  if (!DIGEST.test(digest)) throw malformed('digest', '"sha256:" and 64 hexadecimal digits')
}

function assertId(value: string, param: string): void {
  if (!isId(value)) throw malformed(param, '1-128 letters, digits, "_", "." or "-"')
}

/** The API validates paths too; code that writes files checks again. */
function assertPath(path: string): void {
  const isSafe = path.split('/').every((part) => part !== '' && part !== '.' && part !== '..')
  // oxlint-disable-next-line no-control-regex -- these characters must not be in a name
  if (!isSafe || /[\u0000-\u001f\u007f\\]/.test(path) || !path.isWellFormed()) {
    throw malformed('path', 'a relative path without "." or ".."')
  }
}

/** Path of a stored file. Also protects against a manipulated database row. */
export function assertKeptPath(path: string): void {
  if (!/^(?:results|artifacts)\/[0-9a-f]{2}\/[^/]/.test(path)) throw malformed('path', 'the path of a stored file')
  assertPath(path)
}

function malformed(param: string, expected: string): RolloutError {
  return new RolloutError('request.malformed', `${param} must be ${expected}.`, { status: 422, param })
}
