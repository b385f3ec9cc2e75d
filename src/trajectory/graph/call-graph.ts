import type { SessionRecord } from '../../model/session.ts'
import type { Label } from '../../model/sample.ts'
import type { Choice, Turn, TurnRequest, TurnResponse } from '../../model/turn.ts'

/** Parses recorded requests. Implemented over the dialects, which this folder must not import. */
export interface RequestReader {
  /** Returns the normalised request; undefined if this version cannot parse it. */
  readRequest(turn: Turn): TurnRequest | undefined
  /** Returns messages and tools in Chat Completions format. */
  readPrompt(turn: Turn): { messages: unknown[]; tools: unknown[] | null }
}

/** Why a prompt does not begin, token for token, with the prompt and answer of the call that it continues. */
export type BreakReason =
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
 * How a call's prompt relates to earlier calls. `exact`: the prompt begins, token for token, with the prompt and answer of
 * `parent`. `forked`: the call continues the conversation of `from`, but with other tokens. `root`: a new conversation.
 */
export type Edge =
  | {
      verdict: 'exact'
      parent: CallNode
      /**
       * Set if the messages continue a newer call than `parent`, whose tokens the harness changed. `parent` is then correct but
       * not the closest call.
       */
      passedOver?: HistoryBreak
    }
  | ({ verdict: 'forked' } & HistoryBreak)
  | { verdict: 'root'; reason: 'first-call' | 'new-conversation' | 'no-tokens' }

/** The point where a call continues an earlier call with other tokens. */
export interface HistoryBreak {
  from: CallNode
  reason: BreakReason
  /** Explanation for people. */
  detail: string
  /** Number of leading tokens that the prompt shares with the prompt and answer of `from`. */
  commonTokens: number
}

/** Returns the history break of an edge; undefined for a root or an exact continuation of the newest call. */
export function breakOf(edge: Edge): HistoryBreak | undefined {
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
  /** Calls whose `exact` parent is this call, oldest first. */
  readonly children: readonly CallNode[]
  readonly label: Label
  /** Reasons for the label, for people. */
  readonly evidence: readonly string[]
}

/** The calls of one session as a forest over token prefixes. The order of the records does not matter. */
export interface CallGraph {
  readonly session: SessionRecord
  /** Oldest first, but each call behind its parent. */
  readonly nodes: readonly CallNode[]
  /** Turns without an answer. */
  readonly silent: readonly Turn[]
  /** Redundant records: the same turn has a more complete record. */
  readonly duplicates: readonly Turn[]
}
