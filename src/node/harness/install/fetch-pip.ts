import { mkdtemp, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { runProgram } from '../../../lib/process/run-program.ts'

/** pip before 24 compares each file of a package index with a thousand platform tags: half of the time of an installation. */
const PIP = 'pip==26.3'

interface FetchedPip extends AsyncDisposable {
  /** A folder with pip. Undefined if this pip cannot be installed, for example because Python is too old for it. */
  folder: string | undefined
}

/** Installs a recent pip, with the pip of `python`, into a folder that is removed on disposal. */
export async function fetchPip(
  python: string,
  deps: { env: Readonly<Record<string, string | undefined>>; signal: AbortSignal; tmpdir: string },
): Promise<FetchedPip> {
  const scratch = await mkdtemp(join(deps.tmpdir, 'polar-pip-'))
  const dispose = (): Promise<void> => rm(scratch, { recursive: true, force: true })
  try {
    const flags = ['--target', scratch, '--no-deps', '--no-compile', '--no-input', '--disable-pip-version-check']
    const { exitCode } = await runProgram([python, '-m', 'pip', 'install', ...flags, PIP], deps)
    return { folder: exitCode === 0 ? scratch : undefined, [Symbol.asyncDispose]: dispose }
  } catch (error) {
    await dispose()
    throw error
  }
}
