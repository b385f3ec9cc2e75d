import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'

/** A HOME for one run of a harness, so that it reads no settings of anybody and leaves none behind. */
export interface HarnessHome extends AsyncDisposable {
  readonly path: string
  /** Inside it, so that temporary files go with it. */
  readonly tmpdir: string
}

/** Files are by path below the new folder, which is made in `parent`. Only its owner may enter it: files may hold a key. */
export async function createHarnessHome(files: Readonly<Record<string, string>>, parent: string): Promise<HarnessHome> {
  // Made with mode 0700.
  const path = await mkdtemp(join(parent, 'polar-home-'))
  // Tools the harness left behind may still be writing.
  const remove = () => rm(path, { recursive: true, force: true, maxRetries: 5, retryDelay: 100 })
  const tmpdir = join(path, 'tmp')
  try {
    await mkdir(tmpdir, { mode: 0o700 })
    for (const [name, text] of Object.entries(files)) {
      const file = join(path, name)
      await mkdir(dirname(file), { recursive: true, mode: 0o700 })
      await writeFile(file, text, { mode: 0o600 })
    }
  } catch (error) {
    await remove()
    throw error
  }
  return { path, tmpdir, [Symbol.asyncDispose]: remove }
}
