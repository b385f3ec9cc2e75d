import { rmdir } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { ignoreErrno } from '../../lib/fs/errno.ts'
import { createLimit } from '../../lib/async/limit.ts'
import { unlinkIfThere } from './disk.ts'
import { assertKeptPath } from './layout.ts'

const MAX_PARALLEL = 8
/** `artifacts/<2 hex>` and the folders above it are kept. */
const KEPT_DEPTH = 2

/** Removes stored files and the folders that become empty. Missing files are ignored. */
export async function removeKept(dir: string, paths: readonly string[]): Promise<void> {
  for (const path of paths) assertKeptPath(path)
  const limit = createLimit(MAX_PARALLEL)
  const removed = await Promise.allSettled(
    paths.map((path) => limit(() => unlinkIfThere(join(dir, path)).catch(ignoreErrno('ENOTDIR')))),
  )
  const folders = new Set(paths.flatMap(foldersOf))
  // Deepest first: only empty folders are removed.
  for (const folder of [...folders].sort((a, b) => b.length - a.length)) {
    await rmdir(join(dir, folder)).catch(ignoreErrno('ENOTEMPTY', 'EEXIST', 'ENOENT', 'ENOTDIR'))
  }
  // Reports a failure only after all other files were removed.
  for (const each of removed) if (each.status === 'rejected') throw each.reason
}

function foldersOf(path: string): string[] {
  const folders: string[] = []
  for (let at = dirname(path); at.split('/').length > KEPT_DEPTH; at = dirname(at)) folders.push(at)
  return folders
}
