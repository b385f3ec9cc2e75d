import { link } from 'node:fs/promises'
import { ignoreErrno } from './errno.ts'

/** Creates a hard link. Returns false if the target already exists. */
export async function linkIfAbsent(from: string, to: string): Promise<boolean> {
  const linked = link(from, to).then(() => true)
  return (await linked.catch(ignoreErrno('EEXIST'))) ?? false
}
