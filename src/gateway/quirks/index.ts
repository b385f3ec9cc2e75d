import type { TurnRequest } from '../../model/turn.ts'
import { claudeBillingLine } from './claude-billing-line.ts'
import type { Quirk } from './quirk.ts'
import { toQuirk, type QuirkRule } from './rule.ts'

export const quirks: readonly Quirk[] = [claudeBillingLine]

/** Returns the built-in quirks, then the rules in their order. */
export function quirksWith(rules: readonly QuirkRule[]): readonly Quirk[] {
  return [...quirks, ...rules.map(toQuirk)]
}

/** Returns the request as the engine reads it, and the names of the quirks that changed it. */
export function applyQuirks(
  request: TurnRequest,
  active: readonly Quirk[] = quirks,
): { request: TurnRequest; applied: string[] } {
  const applied: string[] = []
  let current = request
  for (const quirk of active) {
    const next = quirk.apply(current)
    if (next !== current) applied.push(quirk.name)
    current = next
  }
  return { request: current, applied }
}
