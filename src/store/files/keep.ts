import { createHash, randomBytes } from 'node:crypto'
import { rename, rm, stat, utimes, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { errnoOf, ignoreErrno } from '../../lib/fs/errno.ts'
import { linkIfAbsent } from '../../lib/fs/link-if-absent.ts'
import { RolloutError } from '../../model/failure.ts'
import type { ResultReference } from '../dispatch/types.ts'
import type { KeepAs } from './types.ts'
import { hashFile } from './complete.ts'
import { CREATE, FILE_MODE, makeFolders, syncFolder, unlinkIfThere, withFile, writeAll } from './disk.ts'
import { keptMarker, pathsOf } from './layout.ts'
import { WHOLE } from './segments.ts'
import type { UploadRecord, UploadTable } from './uploads.ts'

/**
 * Moves a complete upload to its final path, and leaves a marker with that path. Undefined if another server has done so since
 * the record was read.
 */
export async function keepUpload(
  dir: string,
  uploads: UploadTable,
  record: UploadRecord,
  as: KeepAs,
): Promise<ResultReference | undefined> {
  const folder = uploads.folderOf(record)
  const { digest, bytes } = record
  if (record.path !== undefined) return { path: await link(dir, join(dir, record.path), record, as), digest, bytes }
  const received = await uploads.readReceived(record)
  if (received === undefined) return undefined
  if (!received.isComplete) {
    const message = `Upload ${record.uploadId} is not complete; send the remaining bytes first.`
    throw new RolloutError('request.conflict', message)
  }
  const path = await link(dir, join(folder, WHOLE), record, as).catch(ignoreErrno('ENOENT'))
  if (path === undefined) return undefined
  await mark(dir, { ...record, path })
  await rm(folder, { recursive: true, force: true })
  return { path, digest, bytes }
}

export async function putResult(
  dir: string,
  sessionId: string,
  attempt: number,
  bytes: Uint8Array,
): Promise<ResultReference> {
  const digest = `sha256:${createHash('sha256').update(bytes).digest('hex')}`
  const temporary = temporaryPath(dir)
  try {
    await withFile(temporary, CREATE, async (file) => {
      await writeAll(file, [bytes], 0)
      await file.datasync()
    })
    const path = await link(dir, temporary, { sessionId, attempt, digest, bytes: bytes.length }, { kind: 'result' })
    return { path, digest, bytes: bytes.length }
  } finally {
    await unlinkIfThere(temporary)
  }
}

type Content = Pick<UploadRecord, 'sessionId' | 'attempt' | 'digest' | 'bytes'>

/**
 * Hard-links the file, so that at every moment at least one path exists. An existing file is never replaced: different bytes
 * with the same name, from a node that built the result again, get the alternative path.
 */
async function link(dir: string, source: string, content: Content, as: KeepAs): Promise<string> {
  const { usual, other } = pathsOf(content, as)
  for (const path of [usual, other]) {
    try {
      await makeFolders(dir, dirname(path))
      const target = join(dir, path)
      const isStored = (await linkIfAbsent(source, target)) || (await isSame(target, source, content))
      if (!isStored) continue
      await syncFolder(dirname(target))
      return path
    } catch (error) {
      // The name is already used by a file or folder, or exceeds the limit of the file system.
      if (path !== usual || !['ENOTDIR', 'EISDIR', 'ENAMETOOLONG', 'EEXIST'].includes(errnoOf(error) ?? '')) throw error
    }
  }
  throw new RolloutError(
    'store.corrupt',
    `${other} exists with a content that does not match its name; check the disk.`,
  )
}

async function isSame(target: string, source: string, { bytes, digest }: Content): Promise<boolean> {
  const [existing, expected] = await Promise.all([stat(target), stat(source)])
  if (!existing.isFile() || existing.size !== bytes) return false
  const isSameFile = existing.ino === expected.ino && existing.dev === expected.dev
  if (!isSameFile && (await hashFile(target, bytes)) !== digest) return false
  // A new ctime keeps the sweep from removing the file before its row is written.
  await utimes(target, existing.atime, existing.mtime)
  return true
}

/** The marker only saves a repeated upload, so it need not survive a loss of power. */
async function mark(dir: string, record: UploadRecord): Promise<void> {
  const path = keptMarker(record.nodeId, record.uploadId)
  await makeFolders(dir, dirname(path))
  const temporary = temporaryPath(dir)
  await writeFile(temporary, JSON.stringify(record), { flag: 'wx', mode: FILE_MODE })
  await rename(temporary, join(dir, path))
}

function temporaryPath(dir: string): string {
  return join(dir, 'tmp', `file-${randomBytes(12).toString('hex')}`)
}
