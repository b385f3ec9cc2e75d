import { mkdir } from 'node:fs/promises'
import { dirname } from 'node:path'
import { errnoOf, ignoreErrno } from './errno.ts'

/**
 * Creates a directory and its missing parents. Node's recursive `mkdir` loops forever where the system reports ENOENT although
 * the parent exists, as below /proc.
 */
export async function makeDirectories(path: string, mode: number): Promise<void> {
  if (await makeOne(path, mode)) return
  const parent = dirname(path)
  if (parent !== path) await makeDirectories(parent, mode)
  await mkdir(path, { mode }).catch(ignoreErrno('EEXIST'))
}

/** Returns whether the directory exists now; false if its parent is missing. */
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
