import { expect, test } from 'vitest'
import { runFuzz } from '../fuzz/run-fuzz.ts'
import { SURFACES } from '../fuzz/surfaces.ts'

/** Smaller than those of `npm run fuzz`, which sends 10,000 requests of up to 64 MB each. */
const OPTIONS = { seed: 7, count: 200, maxBytes: 4 * 1024 ** 2, width: 4 }
/** The server needs more memory because its database runs in the same process. */
const MAX_MEMORY_MB = { server: 1800, usual: 700 }

test.each(SURFACES)('%s answers hostile requests and still serves other clients', async (surface) => {
  const report = await runFuzz(surface, OPTIONS)
  expect(report.attempts).toBe(OPTIONS.count)
  expect(report.answers).not.toHaveProperty('500')
  expect(report.neighbour.calls).toBeGreaterThan(0)
  // CPU time, which does not depend on the load of the machine.
  expect(report.neighbour.longestBusyMs).toBeLessThan(1000)
  expect(report.peakMemoryMb).toBeLessThan(surface === 'server' ? MAX_MEMORY_MB.server : MAX_MEMORY_MB.usual)
})
