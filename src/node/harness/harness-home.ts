import { mkdir, mkdtemp, rm } from 'node:fs/promises'
import { join } from 'node:path'

/** A HOME for one run of a harness, so that it reads no settings of a user and leaves none behind. */
export interface HarnessHome extends AsyncDisposable {
  readonly path: string
  /** Inside `path`, so that temporary files are removed with it. */
  readonly tmpdir: string
}

/** Creates a folder in `parent` that only its owner may enter. */
export async function createHarnessHome(parent: string): Promise<HarnessHome> {
  // mkdtemp() creates it with mode 0700.
  const path = await mkdtemp(join(parent, 'polar-home-'))
  // Processes that the harness left running may still write to it.
  const remove = () => rm(path, { recursive: true, force: true, maxRetries: 5, retryDelay: 100 })
  const tmpdir = join(path, 'tmp')
  try {
    await mkdir(tmpdir, { mode: 0o700 })
  } catch (error) {
    await remove()
    throw error
  }
  return { path, tmpdir, [Symbol.asyncDispose]: remove }
}
