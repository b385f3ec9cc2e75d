import type { TurnRequest } from '../../model/turn.ts'
import { claudeBillingLine } from './claude-billing-line.ts'
import type { Quirk } from './quirk.ts'
import { toQuirk, type QuirkRule } from './rule.ts'

export const quirks: readonly Quirk[] = [claudeBillingLine]

/** The built-in ones, then the rules in their order. */
export function quirksWith(rules: readonly QuirkRule[]): readonly Quirk[] {
  return [...quirks, ...rules.map(toQuirk)]
}

/** The request as the engine should read it, and the names of the rules that changed it. */
export function applyQuirks(
  request: TurnRequest,
  known: readonly Quirk[] = quirks,
): { request: TurnRequest; applied: string[] } {
  const applied: string[] = []
  let current = request
  for (const quirk of known) {
    const next = quirk.apply(current)
    if (next !== current) applied.push(quirk.name)
    current = next
  }
  return { request: current, applied }
}
