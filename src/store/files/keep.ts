import { createHash, randomBytes } from 'node:crypto'
import { rename, rm, stat, utimes, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { linkIfAbsent } from '../../lib/fs/link-if-absent.ts'
import { errnoOf } from '../../lib/fs/errno.ts'
import { RolloutError } from '../../model/failure.ts'
import type { ResultReference } from '../dispatch/port.ts'
import type { KeepAs } from '../files.ts'
import { hashFile } from './complete.ts'
import { CREATE, FILE_MODE, makeFolders, syncFolder, unless, unlinkIfThere, withFile, writeAll } from './disk.ts'
import { keptMarker, placesOf } from './layout.ts'
import { WHOLE } from './segments.ts'
import type { UploadBook, UploadRecord } from './uploads.ts'

/**
 * Gives a complete upload its name for good. The upload is gone then, and a marker says where its bytes are. Undefined:
 * another server has done it since the record was read.
 */
export async function keepUpload(
  dir: string,
  book: UploadBook,
  record: UploadRecord,
  as: KeepAs,
): Promise<ResultReference | undefined> {
  const folder = book.folderOf(record)
  const { digest, bytes } = record
  if (record.path !== undefined) return { path: await place(dir, join(dir, record.path), record, as), digest, bytes }
  const received = await book.look(record)
  if (received === undefined) return undefined
  if (!received.isComplete) {
    const message = `Upload ${record.uploadId} is not complete, so it cannot be kept; send the rest of it first.`
    throw new RolloutError('request.conflict', message)
  }
  const path = await place(dir, join(folder, WHOLE), record, as).catch(unless('ENOENT'))
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
  const made = temporary(dir)
  try {
    await withFile(made, CREATE, async (file) => {
      await writeAll(file, [bytes], 0)
      await file.datasync()
    })
    const path = await place(dir, made, { sessionId, attempt, digest, bytes: bytes.length }, { kind: 'result' })
    return { path, digest, bytes: bytes.length }
  } finally {
    await unlinkIfThere(made)
  }
}

type Content = Pick<UploadRecord, 'sessionId' | 'attempt' | 'digest' | 'bytes'>

/**
 * A second name for the same bytes, so that at every moment they are in one place or in both. What has a name keeps it:
 * other bytes under the same name, from a node that made the result anew, go elsewhere.
 */
async function place(dir: string, source: string, content: Content, as: KeepAs): Promise<string> {
  const { usual, other } = placesOf(content, as)
  for (const path of [usual, other]) {
    try {
      await makeFolders(dir, dirname(path))
      const target = join(dir, path)
      const isMine = (await linkIfAbsent(source, target)) || (await isSame(target, source, content))
      if (!isMine) continue
      await syncFolder(dirname(target))
      return path
    } catch (error) {
      // The name of an earlier file is that of a folder now, or it is longer than names may be here.
      if (path !== usual || !['ENOTDIR', 'EISDIR', 'ENAMETOOLONG', 'EEXIST'].includes(errnoOf(error) ?? '')) throw error
    }
  }
  throw new RolloutError('store.corrupt', `${other} is there with other bytes than its name says; look at the disk.`)
}

async function isSame(target: string, source: string, { bytes, digest }: Content): Promise<boolean> {
  const [there, wanted] = await Promise.all([stat(target), stat(source)])
  if (!there.isFile() || there.size !== bytes) return false
  const isSameFile = there.ino === wanted.ino && there.dev === wanted.dev
  if (!isSameFile && (await hashFile(target, bytes)) !== digest) return false
  // Wanted again just now: whoever removes what nobody knows must leave it alone for a while.
  await utimes(target, there.atime, there.mtime)
  return true
}

/** Only spares sending it again, so it need not survive a loss of power. */
async function mark(dir: string, record: UploadRecord): Promise<void> {
  const path = keptMarker(record.nodeId, record.uploadId)
  await makeFolders(dir, dirname(path))
  const made = temporary(dir)
  await writeFile(made, JSON.stringify(record), { flag: 'wx', mode: FILE_MODE })
  await rename(made, join(dir, path))
}

function temporary(dir: string): string {
  return join(dir, 'tmp', `file-${randomBytes(12).toString('hex')}`)
}
