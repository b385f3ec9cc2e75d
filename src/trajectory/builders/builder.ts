import type { SessionRecord } from '../../model/session.ts'
import type { Trace } from '../../model/trajectory.ts'

/** A turn or choice that yields no trace, and why. Nothing sampled is dropped without a word. */
export interface Exclusion {
  turnId: string
  choice?: number
  /** Sampled tokens that are not trained because of it. */
  tokens: number
  reason: string
}

export interface BuildResult {
  traces: Trace[]
  exclusions: Exclusion[]
}

/** Turns recorded calls into training samples. Pure: the same session gives the same traces. */
export interface Builder {
  readonly name: string
  build(session: SessionRecord): BuildResult
}
