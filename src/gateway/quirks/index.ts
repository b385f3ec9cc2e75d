import type { TurnRequest } from '../../model/turn.ts'
import { claudeBillingLine } from './claude-billing-line.ts'
import type { Quirk } from './quirk.ts'

export const quirks: readonly Quirk[] = [claudeBillingLine]

/** The request as the engine should read it, and the names of the rules that changed it. */
export function applyQuirks(request: TurnRequest): { request: TurnRequest; applied: string[] } {
  const applied: string[] = []
  let current = request
  for (const quirk of quirks) {
    const next = quirk.apply(current)
    if (next !== current) applied.push(quirk.name)
    current = next
  }
  return { request: current, applied }
}
