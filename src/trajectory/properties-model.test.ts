import { test } from 'vitest'
import { checkInvariants } from '../../test/support/random-sessions/check-invariants.ts'
import { loadRealWorld } from '../../test/support/random-sessions/real-world.ts'
import { runs } from '../../test/support/runs.ts'

test(
  'samples agree with the records, with the tokenizer and the template of the embedded model',
  {
    timeout: 240_000,
  },
  async () => {
    checkInvariants(await loadRealWorld(), { numRuns: runs(400), maxOps: 6 })
  },
)
