import { rmdir } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { createLimit } from '../../lib/async/limit.ts'
import { unless, unlinkIfThere } from './disk.ts'
import { assertKeptPath } from './layout.ts'

const FILES_AT_ONCE = 8
/** `artifacts/<2 hex>` stays, and so does what is above. */
const LASTING_DEPTH = 2

/** Kept files, and the folders that are empty without them. One that is gone already is as good as removed. */
export async function removeKept(dir: string, paths: readonly string[]): Promise<void> {
  for (const path of paths) assertKeptPath(path)
  const limit = createLimit(FILES_AT_ONCE)
  const removed = await Promise.allSettled(
    paths.map((path) => limit(() => unlinkIfThere(join(dir, path)).catch(unless('ENOTDIR')))),
  )
  const folders = new Set(paths.flatMap(foldersOf))
  // The deepest first: only what is empty goes.
  for (const folder of [...folders].sort((a, b) => b.length - a.length)) {
    await rmdir(join(dir, folder)).catch(unless('ENOTEMPTY', 'EEXIST', 'ENOENT', 'ENOTDIR'))
  }
  // One that cannot be removed does not keep the others.
  for (const each of removed) if (each.status === 'rejected') throw each.reason
}

function foldersOf(path: string): string[] {
  const folders: string[] = []
  for (let at = dirname(path); at.split('/').length > LASTING_DEPTH; at = dirname(at)) folders.push(at)
  return folders
}
