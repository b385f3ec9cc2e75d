import * as fc from 'fast-check'
import { Evidence, invariants } from '../trajectory-oracle.ts'
import { trialOf } from './trial.ts'
import type { World } from './world.ts'

/** Throws with the smallest counterexample if one of `numRuns` random sessions violates an invariant. */
export function checkInvariants(world: World, { numRuns, maxOps }: { numRuns: number; maxOps: number }): void {
  fc.assert(
    fc.property(trialOf(world, maxOps), (trial) => {
      const evidence = new Evidence(trial)
      for (const check of Object.values(invariants)) check(evidence)
    }),
    { numRuns },
  )
}
