import { access, constants, stat } from 'node:fs/promises'
import { delimiter, join } from 'node:path'

/** Returns the absolute path of an executable file in the folders of a PATH; undefined if there is none. */
export async function findExecutable(name: string, path: string): Promise<string | undefined> {
  for (const folder of path.split(delimiter)) {
    if (!folder.startsWith('/')) continue
    const file = join(folder, name)
    if (await isExecutable(file)) return file
  }
  return undefined
}

async function isExecutable(file: string): Promise<boolean> {
  try {
    await access(file, constants.X_OK)
    return (await stat(file)).isFile()
  } catch {
    return false
  }
}
