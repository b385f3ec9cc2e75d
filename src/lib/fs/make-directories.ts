import { mkdir } from 'node:fs/promises'
import { dirname } from 'node:path'
import { errnoOf } from './errno.ts'

/**
 * Makes a directory, and those above it, where they are not there yet. Instead of node's recursive `mkdir`, which tries
 * for ever where the system says ENOENT although the parent exists, as it does below /proc.
 */
export async function makeDirectories(path: string, mode: number): Promise<void> {
  if (await makeOne(path, mode)) return
  const parent = dirname(path)
  if (parent !== path) await makeDirectories(parent, mode)
  await mkdir(path, { mode }).catch((error: unknown) => {
    if (errnoOf(error) !== 'EEXIST') throw error
  })
}

/** Whether it is there now; not, when its parent is missing. */
async function makeOne(path: string, mode: number): Promise<boolean> {
  try {
    await mkdir(path, { mode })
    return true
  } catch (error) {
    if (errnoOf(error) === 'EEXIST') return true
    if (errnoOf(error) === 'ENOENT') return false
    throw error
  }
}
