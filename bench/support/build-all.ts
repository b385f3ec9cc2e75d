import type { SessionRecord } from '../../src/model/session.ts'
import { buildSession } from '../../src/trajectory/build-session.ts'
import { builders } from '../../src/trajectory/builders/index.ts'
import { CallFilter } from '../../src/trajectory/select-calls.ts'

export const BUILDER_KINDS = ['per_request', 'prefix_merging', 'prefix_tree'] as const
export type BuilderKind = (typeof BUILDER_KINDS)[number]

/** Builds a session with all its samples, and returns the number of their tokens. */
export function buildAll(session: SessionRecord, kind: BuilderKind): number {
  const builder = builders.create(builders.config.parse({ kind }), {})
  const reader = { readRequest: () => undefined, readPrompt: () => ({ messages: [], tools: null }) }
  const built = buildSession(session, { builder, filter: CallFilter.parse({}), weighting: 'tokens', reader })
  let tokens = 0
  for (const sample of built.samples()) tokens += sample.ids.length
  if (built.summary.tokens.trained !== built.summary.tokens.sampled) throw new Error('some tokens were not trained')
  return tokens
}
