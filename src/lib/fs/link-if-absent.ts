import { link } from 'node:fs/promises'
import { errnoOf } from './errno.ts'

/** Creates a hard link. Returns false if the target already exists. */
export async function linkIfAbsent(from: string, to: string): Promise<boolean> {
  try {
    await link(from, to)
    return true
  } catch (error) {
    if (errnoOf(error) === 'EEXIST') return false
    throw error
  }
}
