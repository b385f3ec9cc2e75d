import { totalmem } from 'node:os'
import type { StageWidths } from '../session/stages.ts'

const MB = 1024 * 1024
/**
 * Share of the machine's memory for sandboxes. The rest is for the node, the server, a local engine, and the kernel's
 * file cache.
 */
const FOR_SANDBOXES = 0.75
/** Harnesses in Node or Python need some hundred megabytes to start. */
const LEAST_MB = 1024

/**
 * Memory of a sandbox whose task sets none, in MB: three quarters of the machine's memory, divided by the number of
 * agents and graders that may run concurrently, but at least 1024. With that minimum, the sum of all limits may exceed
 * the machine's memory.
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
