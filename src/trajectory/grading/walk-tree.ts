import { chmod, lstat, readdir } from 'node:fs/promises'
import { join } from 'node:path'
import { ignoreErrno } from '../../lib/fs/errno.ts'

export interface FoundFile {
  path: string
  /** Path relative to the root; empty for the root itself. */
  below: string
  kind: 'file' | 'directory' | 'link'
}

/**
 * Lists a copied tree in the order of its names, each folder before its contents. Links are not followed. A folder that the
 * consumer removes is not entered. Folders become readable and writable for this process.
 */
export async function* walk(path: string, below = ''): AsyncGenerator<FoundFile> {
  const stats = await lstat(path)
  if (!stats.isDirectory()) {
    yield { path, below, kind: stats.isSymbolicLink() ? 'link' : 'file' }
    return
  }
  await allow(path, 0o700)
  yield { path, below, kind: 'directory' }
  // The consumer may have removed the folder.
  const names = (await readdir(path).catch(ignoreErrno('ENOENT'))) ?? []
  for (const name of names.toSorted()) yield* walk(join(path, name), below === '' ? name : `${below}/${name}`)
}

/** Adds permission bits to a file or folder that lacks them. */
export async function allow(path: string, bits: number): Promise<void> {
  const { mode } = await lstat(path)
  if ((mode & bits) !== bits) await chmod(path, (mode & 0o777) | bits)
}
