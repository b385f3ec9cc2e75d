import { setTimeout } from 'node:timers/promises'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'

export interface HeldMemory {
  /** Bytes that are still in use: the heap, and what objects on it hold outside of it, array buffers included. */
  held: number
  /** Bytes of the process as the system sees it. */
  resident: number
}

/** What this process holds once everything that can be freed is. */
export async function readHeldMemory(): Promise<HeldMemory> {
  setFlagsFromString('--expose-gc')
  const collect = runInNewContext('gc') as () => void
  // What an object held outside of the heap goes a turn after the object.
  for (let round = 0; round < 3; round++) {
    await setTimeout(100)
    collect()
  }
  const { heapUsed, external, rss } = process.memoryUsage()
  return { held: heapUsed + external, resident: rss }
}
