import { totalmem } from 'node:os'
import type { StageWidths } from '../session/stages.ts'

const MB = 1024 * 1024
/** The rest is for the node, the server, an engine beside them, and files that the kernel keeps in memory. */
const FOR_SANDBOXES = 0.75
/** Harnesses that run on Node or Python need some hundred megabytes before they do anything. */
const LEAST_MB = 1024

/**
 * Memory of a sandbox whose task names none, in MB: three quarters of the machine's memory, divided by the number of agents
 * and graders that may run at a time, but not less than 1024. Below that the sum of all limits exceeds the machine.
 */
export function defaultMemoryMb(machineBytes: number, { run, postrun }: Pick<StageWidths, 'run' | 'postrun'>): number {
  const all = Math.floor((machineBytes * FOR_SANDBOXES) / MB)
  return Math.max(1, Math.min(all, Math.max(LEAST_MB, Math.floor(all / (run + postrun)))))
}

/** Memory that this process may use, in bytes: the machine's, or the limit of its control group. */
export function machineMemory(): number {
  const limit = process.constrainedMemory()
  return limit > 0 && limit < totalmem() ? limit : totalmem()
}
