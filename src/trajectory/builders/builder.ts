import type { SessionRecord } from '../../model/session.ts'
import type { Trace } from '../../model/trajectory.ts'
import type { Turn } from '../../model/turn.ts'

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

/** Messages and tools of a recorded request, in Chat Completions' form. */
export type PromptReader = (turn: Turn) => { messages: unknown[]; tools: unknown[] | null }

/** Turns recorded calls into training samples. Pure: the same session gives the same traces. */
export interface Builder {
  readonly name: string
  build(session: SessionRecord, deps: { readPrompt: PromptReader }): BuildResult
}
