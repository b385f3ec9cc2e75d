import { RolloutError, toFailure, type Failure } from '../../model/failure.ts'
import type { BuildFacts, LoadedSession, RecordHead } from '../build/session-build.ts'

/** A built session; its samples are in the build process. */
export interface SessionBuild {
  loaded: LoadedSession
  facts: BuildFacts
}

/** Most harnesses do not report an MCP server that failed to start, but they then offer none of its tools. */
export function missingServers(servers: readonly string[], { offered }: BuildFacts): string[] {
  return servers
    .filter((_, i) => offered[i] === false)
    .map((name) => `No tool of the MCP server "${name}" was ever offered to the model; did it start?`)
}

export function whyIncomplete({ complete, incompleteReasons }: RecordHead): Failure | undefined {
  if (complete) return undefined
  return toFailure(new RolloutError('store.unavailable', `The record is incomplete: ${incompleteReasons.join('; ')}`))
}
