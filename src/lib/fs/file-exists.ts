import { access, constants } from 'node:fs/promises'

/** Whether a file or folder exists and allows the access that `mode` names, by default any. */
export function fileExists(path: string, mode = constants.F_OK): Promise<boolean> {
  return access(path, mode).then(
    () => true,
    () => false,
  )
}
