import { setTimeout } from 'node:timers/promises'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'

export interface HeldMemory {
  /** Bytes in use: the heap, and memory outside of the heap that its objects own, array buffers included. */
  held: number
  /** Resident bytes of the process. */
  resident: number
}

/** Returns the memory of this process after garbage collection. */
export async function readHeldMemory(): Promise<HeldMemory> {
  // Memory outside of the heap is released one turn after its object.
  for (let round = 0; round < 3; round++) {
    await setTimeout(100)
    collectGarbage()
  }
  const { heapUsed, external, rss } = process.memoryUsage()
  return { held: heapUsed + external, resident: rss }
}

export function collectGarbage(): void {
  setFlagsFromString('--expose-gc')
  const collect = runInNewContext('gc') as () => void
  collect()
}
