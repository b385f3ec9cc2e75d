import { constants } from 'node:fs'
import { type FileHandle, mkdir, open, rename, statfs, unlink } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { describeError, errnoOf, ignoreErrno } from '../../lib/fs/errno.ts'
import { RolloutError } from '../../model/failure.ts'

const { O_CREAT, O_EXCL, O_NOFOLLOW, O_RDONLY, O_RDWR, O_WRONLY, O_APPEND } = constants

/** Open flags: never follow a symbolic link; CREATE fails if the file exists. */
export const READ = O_RDONLY | O_NOFOLLOW
export const CHANGE = O_RDWR | O_NOFOLLOW
export const CREATE = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW
export const APPEND = O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW

export const FILE_MODE = 0o600
const FOLDER_MODE = 0o700

export async function withFile<T>(path: string, flags: number, use: (file: FileHandle) => Promise<T>): Promise<T> {
  const file = await open(path, flags, FILE_MODE)
  try {
    return await use(file)
  } finally {
    await file.close()
  }
}

/** Makes changes of the folder's entries durable. */
export function syncFolder(path: string): Promise<void> {
  return withFile(path, O_RDONLY, (folder) => folder.sync())
}

/** Whether the folder did not exist before. */
export async function makeFolder(path: string): Promise<boolean> {
  const made = mkdir(path, { mode: FOLDER_MODE }).then(() => true)
  return (await made.catch(ignoreErrno('EEXIST'))) ?? false
}

/** Creates the folders of a path below the existing `root`, and syncs the entries of new ones. */
export async function makeFolders(root: string, path: string): Promise<void> {
  const made: string[] = []
  let at = root
  for (const part of path.split('/')) {
    at = join(at, part)
    if (await makeFolder(at)) made.push(dirname(at))
  }
  await Promise.all(made.map(syncFolder))
}

/** Repeats partial writes until all bytes are written. */
export async function writeAll(file: FileHandle, chunks: readonly Uint8Array[], position: number): Promise<void> {
  let left = chunks.filter((chunk) => chunk.length > 0)
  let at = position
  while (left.length > 0) {
    const { bytesWritten } = await file.writev(left, at)
    if (bytesWritten === 0) throw new Error('the system wrote no bytes')
    at += bytesWritten
    left = dropBytes(left, bytesWritten)
  }
}

function dropBytes(chunks: readonly Uint8Array[], bytes: number): Uint8Array[] {
  const left = [...chunks]
  let drop = bytes
  while (left[0] !== undefined && left[0].length <= drop) drop -= left.shift()!.length
  if (left[0] !== undefined && drop > 0) left[0] = left[0].subarray(drop)
  return left
}

export async function unlinkIfThere(path: string): Promise<void> {
  await unlink(path).catch(ignoreErrno('ENOENT'))
}

/** Whether `from` existed. */
export async function renameIfThere(from: string, to: string): Promise<boolean> {
  const renamed = rename(from, to).then(() => true)
  return (await renamed.catch(ignoreErrno('ENOENT'))) ?? false
}

const RETRY_AFTER_SECONDS = 30

/** Converts disk errors to `store.unavailable` with a retry time. */
export async function onDisk<T>(problem: string, work: () => Promise<T>): Promise<T> {
  try {
    return await work()
  } catch (error) {
    if (error instanceof RolloutError || errnoOf(error) === undefined) throw error
    const message = `${problem}: ${describeError(error)}. Check the disk of the server’s files.`
    throw new RolloutError('store.unavailable', message, {
      cause: error,
      status: 503,
      retryAfterSeconds: RETRY_AFTER_SECONDS,
    })
  }
}

/** `statfs` costs as much as a write. */
const RECHECK_MS = 500

/** Throws unless `bytes` can be written and the configured space stays free. */
export type AssertFreeSpace = (bytes: number) => Promise<void>

export function createAssertFreeSpace(dir: string, minFreeBytes: number, now: () => number): AssertFreeSpace {
  let free = 0
  let checkedAt = Number.NEGATIVE_INFINITY
  return async (bytes) => {
    if (Math.abs(now() - checkedAt) >= RECHECK_MS) {
      const { bavail, bsize } = await statfs(dir)
      free = bavail * bsize
      checkedAt = now()
    }
    if (free - bytes >= minFreeBytes) return
    const message =
      `The disk of ${dir} has ${toMib(free)} MiB free, too little to write ${toMib(bytes)} MiB and keep ` +
      `${toMib(minFreeBytes)} MiB free; remove files, or lower the space to keep free.`
    throw new RolloutError('store.unavailable', message, { status: 503, retryAfterSeconds: RETRY_AFTER_SECONDS })
  }
}

function toMib(bytes: number): number {
  return Math.ceil(bytes / 2 ** 20)
}
