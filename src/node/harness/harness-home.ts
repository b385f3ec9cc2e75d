import { mkdir, mkdtemp, rm } from 'node:fs/promises'
import { join } from 'node:path'

/** A HOME for one run of a harness, so that it reads no settings of anybody and leaves none behind. */
export interface HarnessHome extends AsyncDisposable {
  readonly path: string
  /** Inside it, so that temporary files go with it. */
  readonly tmpdir: string
}

/** A new folder in `parent` that only its owner may enter. */
export async function createHarnessHome(parent: string): Promise<HarnessHome> {
  // Made with mode 0700.
  const path = await mkdtemp(join(parent, 'polar-home-'))
  // Tools the harness left behind may still be writing.
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
