import * as fc from 'fast-check'
import { expect, test } from 'vitest'
import { checkInvariants } from '../../test/support/random-sessions/check-invariants.ts'
import { situationsOf } from '../../test/support/random-sessions/situations.ts'
import { trialOf } from '../../test/support/random-sessions/trial.ts'
import { toyWorld } from '../../test/support/random-sessions/world.ts'
import { runs } from '../../test/support/runs.ts'

test(
  'samples agree with the records, with a vocabulary of twenty tokens in which conversations coincide by chance',
  {
    timeout: 900_000,
  },
  () => {
    checkInvariants(toyWorld, { numRuns: runs(1000), maxOps: 8 })
  },
)

test('the random sessions cover every failure situation', () => {
  const trials = fc.sample(trialOf(toyWorld, 8), { numRuns: 400 })
  const counts = new Map<string, number>()
  for (const trial of trials) {
    for (const [situation, isThere] of Object.entries(situationsOf(trial))) {
      counts.set(situation, (counts.get(situation) ?? 0) + Number(isThere))
    }
  }
  const rare = [...counts].filter(([, count]) => count < trials.length / 50)
  expect(rare).toEqual([])
})
