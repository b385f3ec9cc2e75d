import { createHash } from 'node:crypto'
import { lstat, readdir } from 'node:fs/promises'
import { join, relative } from 'node:path'
import { createLimit } from '../../../lib/async/limit.ts'

const PARALLEL = 32

/**
 * Returns a digest that changes with any file of a tree. Uses the name, mode, size and modification time of each file, as
 * git does; contents are not read, which keeps it fast.
 */
export async function digestTree(root: string): Promise<string> {
  const limit = createLimit(PARALLEL)
  const first = await lstat(root)
  const entries = first.isDirectory() ? await readdir(root, { recursive: true, withFileTypes: true }) : []
  const paths = [root, ...entries.map((entry) => join(entry.parentPath, entry.name))].toSorted()
  const lines = await Promise.all(
    paths.map((path) =>
      limit(async () => {
        const { mode, size, mtimeMs } = await lstat(path)
        return JSON.stringify([relative(root, path), mode, size, mtimeMs])
      }),
    ),
  )
  return createHash('sha256').update(lines.join('\n')).digest('hex')
}
