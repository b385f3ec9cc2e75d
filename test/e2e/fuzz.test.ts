import { expect, test } from 'vitest'
import { runFuzz } from '../fuzz/run-fuzz.ts'
import { SURFACES } from '../fuzz/surfaces.ts'

/** As `npm run fuzz` does it with 10,000 requests of up to 64 MB each. */
const OPTIONS = { seed: 7, count: 200, maxBytes: 4 * 1024 ** 2, width: 4 }
/** The server holds its database in the process. */
const MOST_MEMORY_MB = { server: 1800, usual: 700 }

test.each(SURFACES)('%s answers hostile requests and serves its neighbours', async (surface) => {
  const report = await runFuzz(surface, OPTIONS)
  expect(report.attempts).toBe(OPTIONS.count)
  expect(report.answers).not.toHaveProperty('500')
  expect(report.neighbourCalls).toBeGreaterThan(0)
  expect(report.peakMemoryMb).toBeLessThan(surface === 'server' ? MOST_MEMORY_MB.server : MOST_MEMORY_MB.usual)
})
