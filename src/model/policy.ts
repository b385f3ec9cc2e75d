import * as z from 'zod'

/**
 * What a pause does with model calls in flight. `drain`: the pause is complete when they have ended. `hold`: they continue
 * in the engine. Both modes hold new calls in the gateways.
 */
export const PauseMode = z.enum(['drain', 'hold'])
export type PauseMode = z.infer<typeof PauseMode>

/** What the gateways of all nodes must apply. */
export const PolicyState = z.object({
  change: z.int().min(0).describe('Incremented by each change of the other fields.'),
  version: z.int().min(0).nullable().describe('Weight version of tokens that are sampled from now on; null: not set.'),
  paused: z.boolean().describe('Gateways hold new model calls.'),
  mode: PauseMode.describe('Mode of the current or latest pause.'),
})
export type PolicyState = z.infer<typeof PolicyState>

/** Returns a weight version as a policy version; undefined for text that a server did not set, such as an engine's name. */
export function toPolicyVersion(weightVersion: string | undefined): number | undefined {
  return weightVersion !== undefined && /^\d{1,15}$/.test(weightVersion) ? Number(weightVersion) : undefined
}
