import { loadProgram } from '../../../../lib/process/load-program.ts'

/** Folder of our files in a pod: a volume, so that it is writable whatever the image allows. */
export const STATE = '/.polar'

/**
 * Command of the first process, which only reaps orphans. No process inside can kill it, because it is process 1. If `env`
 * cannot ignore a signal (only GNU's can), a shell waits for a child instead.
 */
export const INIT =
  'env --ignore-signal=CHLD true 2>/dev/null && exec env --ignore-signal=CHLD sleep 2147483647; while :; do sleep 2147483647 & wait; done'

const sweep = loadProgram(new URL('./sweep.sh', import.meta.url))
const countOom = loadProgram(new URL('./count-oom.sh', import.meta.url))
const launch = loadProgram(new URL('./launch.sh', import.meta.url))
const fetch = loadProgram(new URL('./fetch.sh', import.meta.url))
const prepare = loadProgram(new URL('./prepare.sh', import.meta.url))
export const statsScript = loadProgram(new URL('./stats.sh', import.meta.url))

export const launchScript = (): string => `${sweep()}${countOom()}${withState(launch)}`
export const fetchScript = (): string => withState(fetch)
export const prepareScript = (): string => withState(prepare)
/** Runs `sweep` with its arguments and prints the pids it found. */
export const sweepScript = (): string => `${sweep()}sweep "$@" && echo $found`

function withState(script: () => string): string {
  return `state=${STATE}\n${script()}`
}
