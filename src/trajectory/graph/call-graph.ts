import type { SessionRecord } from '../../model/session.ts'
import type { Label } from '../../model/sample.ts'
import type { Choice, Turn, TurnRequest, TurnResponse } from '../../model/turn.ts'

/** How recorded requests are read; the dialects know, and trajectories do not know the dialects. */
export interface RequestReader {
  /** In our own words; undefined when this version cannot read it. */
  readRequest(turn: Turn): TurnRequest | undefined
  /** Messages and tools in Chat Completions' form. */
  readPrompt(turn: Turn): { messages: unknown[]; tools: unknown[] | null }
}

/** Why a prompt does not literally begin with the prompt and the answer of the call it seems to go on from. */
export type ForkReason =
  | 'compaction'
  | 'edited-history'
  | 'tools-changed'
  | 'reasoning-stripped'
  | 'retokenised'
  | 'truncated-turn'
  | 'template-moves'
  | 'forgotten'
  | 'unknown'

/**
 * What a call's prompt has to do with the calls before it. `exact`: it begins, token for token, with all that the engine
 * read and wrote in `parent`. `forked`: the conversation of `from` goes on, but not literally. `root`: a conversation begins.
 */
export type Edge =
  | {
      verdict: 'exact'
      parent: CallNode
      /**
       * The conversation had got further than `parent`, but its end came back changed. What is said is right, only less than
       * it might be; absent where nothing was passed over.
       */
      passedOver?: Break
    }
  | ({ verdict: 'forked' } & Break)
  | { verdict: 'root'; reason: 'first-call' | 'new-conversation' | 'no-tokens' }

/** A call that another one goes on from, but not literally. */
export interface Break {
  from: CallNode
  reason: ForkReason
  /** What exactly, in words. */
  detail: string
  /** Leading tokens the prompt shares with what `from` read and wrote. */
  commonTokens: number
}

/** Where a call's history came back changed; undefined where it goes on literally or begins. */
export function breakOf(edge: Edge): Break | undefined {
  switch (edge.verdict) {
    case 'exact':
      return edge.passedOver
    case 'forked':
      return edge
    case 'root':
      return undefined
  }
}

/** One sampled answer: a turn and one of its choices. */
export interface CallNode {
  /** `<turn id>#<choice>`. */
  readonly key: string
  readonly turn: Turn
  readonly response: TurnResponse
  readonly choice: Choice
  /** All choices of a turn share one edge. */
  readonly edge: Edge
  /** Calls whose prompt begins with this one's prompt and answer, nothing lying between; oldest first. */
  readonly children: readonly CallNode[]
  readonly label: Label
  /** On what grounds the label; for people. */
  readonly evidence: readonly string[]
}

/** The calls of one session as a forest over token prefixes. The order of the records does not matter. */
export interface CallGraph {
  readonly session: SessionRecord
  /** Oldest first, but each call behind the call that it continues token by token. */
  readonly nodes: readonly CallNode[]
  /** Turns that gave no answer. */
  readonly silent: readonly Turn[]
  /** Records of a turn that another record of the same turn makes superfluous. */
  readonly duplicates: readonly Turn[]
}
