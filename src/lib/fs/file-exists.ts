import { access, constants, stat } from 'node:fs/promises'
import { succeeds } from '../async/succeeds.ts'

/** Whether a file or folder exists and allows the access that `mode` names, by default any. */
export function fileExists(path: string, mode = constants.F_OK): Promise<boolean> {
  return succeeds(access(path, mode))
}

export async function isFolder(path: string): Promise<boolean> {
  return (await stat(path).catch(() => undefined))?.isDirectory() === true
}
