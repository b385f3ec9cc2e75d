import { runProgram } from '../../../lib/process/run-program.ts'

/**
 * What the first process of a process namespace does: nothing, but reap what others leave behind. Being first, nobody
 * inside can end it. The shell waits, for its own child, which is there first, and for whoever else became its child.
 */
export const PORTABLE_INIT =
  'sleep 2147483647 >/dev/null 2>&1 & echo ready; exec >/dev/null 2>&1; while :; do wait; sleep 2147483647 & done'

/** One process instead of two: the kernel reaps for who ignores the signal. A shell cannot, of its own, ignore this one. */
const INIT = 'echo ready; exec env --ignore-signal=CHLD sleep infinity >/dev/null 2>&1'

/** The script for `/bin/sh -c` that this machine's own programs can run; it says `ready` first. */
export async function findInit(env: Readonly<Record<string, string>>): Promise<string> {
  const { exitCode } = await runProgram(['env', '--ignore-signal=CHLD', 'true'], { env })
  return exitCode === 0 ? INIT : PORTABLE_INIT
}
