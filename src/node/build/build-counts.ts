import type { BuildCounts } from '../../model/session-outcome.ts'
import type { BuildSummary } from '../../trajectory/build-session.ts'

export function toCounts({
  builder,
  turns,
  calls,
  rows,
  trainedCalls,
  tokens,
  excludedCalls,
  oldestVersion,
}: BuildSummary): BuildCounts {
  return { builder, turns, calls, rows, trainedCalls, tokens, excludedCalls, oldestVersion }
}
