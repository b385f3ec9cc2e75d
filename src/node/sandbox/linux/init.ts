import { runProgram } from '../../../lib/process/run-program.ts'
import { HOST_ENV } from './files/paths.ts'

/**
 * Script of a process namespace's first process, which only reaps orphans. No process inside can kill it, because it is
 * process 1. The shell waits for its own child and for orphans that became its children.
 */
export const PORTABLE_INIT =
  'sleep 2147483647 >/dev/null 2>&1 & echo ready; exec >/dev/null 2>&1; while :; do wait; sleep 2147483647 & done'

/**
 * Needs one process instead of two: the kernel reaps the children of a process that ignores SIGCHLD. A shell cannot
 * ignore SIGCHLD by itself.
 */
const INIT = 'echo ready; exec env --ignore-signal=CHLD sleep infinity >/dev/null 2>&1'

/** Returns a script for `/bin/sh -c` that works with this machine's programs; it prints `ready` first. */
export async function findInit(): Promise<string> {
  const { exitCode } = await runProgram(['env', '--ignore-signal=CHLD', 'true'], { env: HOST_ENV })
  return exitCode === 0 ? INIT : PORTABLE_INIT
}
