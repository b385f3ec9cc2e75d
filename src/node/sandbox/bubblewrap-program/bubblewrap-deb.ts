import { mkdir, readdir } from 'node:fs/promises'
import { join } from 'node:path'
import { runProgram } from '../../../lib/process/run-program.ts'
import type { IndexDeps } from './python-index.ts'

/** Path of the program in the unpacked package. Its libraries belong to Debian's base system. */
export const DEB_PROGRAM = 'usr/bin/bwrap'

/**
 * Fetches the distribution's own package with apt-get and unpacks it into an empty folder, which needs no root and
 * installs nothing. apt-get checks the distribution's signature. Throws an Error with a readable message.
 */
export async function unpackDeb(folder: string, deps: IndexDeps): Promise<void> {
  const scratch = join(folder, '.apt')
  await mkdir(scratch)
  let fetched = await runProgram(['apt-get', '-qq', 'download', 'bubblewrap'], { ...deps, cwd: scratch })
  if (fetched.exitCode !== 0 && fetched.exitCode !== 127) {
    // The machine has no package lists. These lists are separate from the system's, which only root may write.
    for (const name of ['lists/partial', 'cache']) await mkdir(join(scratch, name), { recursive: true })
    const own = ['-o', `Dir::State::Lists=${join(scratch, 'lists')}`, '-o', `Dir::Cache=${join(scratch, 'cache')}`]
    await runProgram(['apt-get', '-qq', ...own, 'update'], { ...deps, cwd: scratch })
    fetched = await runProgram(['apt-get', '-qq', ...own, 'download', 'bubblewrap'], { ...deps, cwd: scratch })
  }
  const file = (await readdir(scratch)).find((name) => name.endsWith('.deb'))
  if (file === undefined) {
    const reason = fetched.exitCode === 127 ? 'it is not installed' : lastLine(fetched.stderr)
    throw new Error(`apt-get cannot fetch bubblewrap: ${reason}`)
  }
  const unpacked = await runProgram(['dpkg-deb', '-x', join(scratch, file), folder], deps)
  if (unpacked.exitCode !== 0) throw new Error(`dpkg-deb cannot unpack ${file}: ${lastLine(unpacked.stderr)}`)
}

function lastLine(text: string): string {
  return text.trim().split('\n').at(-1) ?? ''
}
