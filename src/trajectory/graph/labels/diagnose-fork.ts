import { textOf, type Message } from '../../../model/message.ts'
import type { HistoryBreak, CallNode, Edge, BreakReason } from '../call-graph.ts'
import { change, differencesOf, type Difference } from '../parents/compare-answer.ts'
import { describeSetting } from './describe-setting.ts'
import { findOrigin, type CallOrigin } from '../parents/find-origin.ts'
import { findSummary } from './find-summary.ts'
import type { Histories } from '../parents/histories.ts'
import { commonTokens } from '../parents/nearest-call.ts'

/** The facts about a call without an exact parent. */
export interface ForkSituation {
  /** The earlier call that shares the most leading tokens with it. */
  from: CallNode
  commonTokens: number
  /** All calls that started earlier, oldest first. */
  earlier: readonly CallNode[]
}

type ForkedEdge = Extract<Edge, { verdict: 'forked' }>
type Cause = Pick<HistoryBreak, 'reason' | 'detail'>

/** Number of tokens that a template may put before an answer and omit from the history: a role, empty reasoning. */
const OPENING = 16

/** Maximum length in tokens of the marks that begin reasoning. */
const THOUGHT_MARKS = 8

/**
 * Decides whether a call continues a conversation or begins one, and why the token prefix broke. The messages identify the
 * conversation, the tokens the position, both together the reason. If neither shows the reason, the gateway's note decides.
 */
export function diagnoseFork(node: CallNode, situation: ForkSituation, histories: Histories): Edge {
  const origin = findOrigin(node, situation, histories)
  if (origin === undefined || (origin.kind === 'continues' && !origin.isAnswered)) {
    const summary = findSummary(node, situation, histories)
    if (summary !== undefined) {
      const author = summary.isRecorded ? '' : ', which no recorded call wrote'
      const detail = `message ${summary.at + 1} is a summary of the conversation before${author}`
      return forked(node, summary.from, { reason: 'compaction', detail })
    }
  }
  if (origin === undefined) return byTokens(node, situation, histories)
  return byMessages(node, origin, histories)
}

/** Explains why a call does not continue the tokens of `from`, although it repeats its messages and answer. */
export function diagnoseBreak(node: CallNode, from: CallNode, histories: Histories): HistoryBreak {
  const { verdict: _, ...found } = forked(node, from, whyNotLiteral(node, from, histories))
  return found
}

function forked(node: CallNode, from: CallNode, cause: Cause): ForkedEdge {
  const common = commonTokens(node.response.promptIds, { promptIds: from.response.promptIds, ids: from.choice.ids })
  return { verdict: 'forked', from, ...cause, commonTokens: common }
}

// --- by the messages --------------------------------------------------------------------------------------------------

function byMessages(node: CallNode, origin: CallOrigin, histories: Histories): Edge {
  const { from } = origin
  switch (origin.kind) {
    case 'continues':
      return forked(node, from, whyNotLiteral(node, from, histories))
    case 'edited':
      return forked(node, from, { reason: 'edited-history', detail: describeEdit(node, from, origin.at, histories) })
    case 'reworded': {
      const detail = `${nameOf(node, origin.at, histories)}: a remark was added, and the answer left out`
      return forked(node, from, { reason: 'edited-history', detail })
    }
    case 'repeats':
      return asBefore(node, from, histories)
  }
}

/** The same messages in other tokens: the call continues whatever `same` continues. */
function asBefore(node: CallNode, same: CallNode, histories: Histories): Edge {
  const { edge } = same
  if (edge.verdict === 'root') return { verdict: 'root', reason: 'new-conversation' }
  const setting = describeSetting(node.turn, same.turn, histories)
  const detail = 'the same messages as in an earlier call are written in other tokens'
  const cause: Cause = setting ?? { reason: 'retokenised', detail }
  return forked(node, edge.verdict === 'exact' ? edge.parent : edge.from, cause)
}

/** The call repeats all messages of `from`, but its prompt does not begin with the tokens of `from`. */
function whyNotLiteral(node: CallNode, from: CallNode, histories: Histories): Cause {
  const { promptIds } = from.response
  const common = commonTokens(node.response.promptIds, { promptIds, ids: from.choice.ids })
  const at = histories.of(from.turn)?.messages.length ?? 0
  if (common >= promptIds.length - OPENING) return whyAnswer(node, from, at, common - promptIds.length, histories)
  // An edit is the reason wherever the tokens diverge: after an edit the gateway does not test the template.
  return (
    describeSetting(node.turn, from.turn, histories) ??
    editCause(node, from, at, histories) ??
    whyEarlier(node, from, common, histories)
  )
}

/** Returns what the harness changed in an answer; undefined if it is unchanged or only formatted differently. */
function editCause(node: CallNode, call: CallNode, at: number, histories: Histories): Cause | undefined {
  const differences = differencesOf(histories.message(node.turn, at), call.choice.message)
  const find = (...kinds: Difference['kind'][]): string | undefined =>
    differences.find(({ kind }) => kinds.includes(kind))?.what
  const edit = find('dropped') ?? find('changed')
  const cut = endedEarly(call)
  const name = nameOf(node, at, histories)
  if (edit !== undefined) {
    const detail = `${name}: ${[edit, cut].filter(Boolean).join('; ')}`
    return { reason: cut === undefined ? 'edited-history' : 'truncated-turn', detail }
  }
  const print = gatewayCause(node)?.reason === 'edited-history' ? find('reprinted', 'trimmed') : undefined
  return print === undefined ? undefined : { reason: 'edited-history', detail: `${name}: ${print}` }
}

/** The tokens diverge before the answer of `from`, in its own prompt. */
function whyEarlier(node: CallNode, from: CallNode, common: number, histories: Histories): Cause {
  const recorded = gatewayCause(node)
  let ancestor = from
  while (ancestor.edge.verdict === 'exact' && common < ancestor.response.promptIds.length - OPENING) {
    ancestor = ancestor.edge.parent
  }
  const isInside =
    ancestor !== from && common < ancestor.response.promptIds.length + ancestor.choice.ids.length && common > 0
  const at = histories.of(ancestor.turn)?.messages.length
  if (isInside && at !== undefined) {
    return whyAnswer(node, ancestor, at, common - ancestor.response.promptIds.length, histories)
  }
  const detail = `the same messages are written differently from token ${common + 1} on`
  return recorded ?? { reason: 'template-moves', detail }
}

/** The tokens diverge `offset` tokens after the start of an answer. */
function whyAnswer(node: CallNode, call: CallNode, at: number, offset: number, histories: Histories): Cause {
  const name = nameOf(node, at, histories)
  const { choice } = call
  const differences = differencesOf(histories.message(node.turn, at), choice.message)
  const find = (kind: Difference['kind']): Difference | undefined => differences.find((d) => d.kind === kind)
  const cause = (reason: BreakReason, what: string): Cause => ({ reason, detail: `${name}: ${what}` })
  const isAtThought = Boolean(choice.message.reasoning) && offset <= THOUGHT_MARKS

  const edit = editCause(node, call, at, histories)
  if (edit !== undefined) return edit
  const cut = endedEarly(call)
  const missing = isSealed(node) ? undefined : find('reasoning-missing')
  const recorded = gatewayCause(node)
  if (recorded?.reason === 'reasoning-stripped' || isAtThought) {
    // The gateway tested the template with the reasoning in place, whether or not the harness sent it.
    const byHarness = recorded?.reason === 'reasoning-stripped' ? undefined : missing?.what
    return cause('reasoning-stripped', byHarness ?? 'the chat template leaves the reasoning out')
  }
  if (cut !== undefined) return cause('truncated-turn', cut)
  if (recorded !== undefined) return recorded
  if (offset < 0) return cause('template-moves', 'what the chat template puts in front of an answer is not repeated')
  const print = find('reprinted') ?? find('trimmed')
  if (print !== undefined) return cause('edited-history', print.what)
  const setting = describeSetting(node.turn, call.turn, histories)
  if (setting !== undefined) return setting
  if (missing !== undefined) return cause('reasoning-stripped', missing.what)
  return cause('retokenised', `the same text in other tokens from token ${offset + 1} of ${choice.ids.length} on`)
}

/** Whether the request carries reasoning in encrypted form, which only the gateway of that session can decrypt. */
function isSealed({ turn }: CallNode): boolean {
  return /"(?:signature|thoughtSignature|encrypted_content)"\s*:\s*"[^"]/.test(turn.request)
}

function endedEarly({ choice }: CallNode): string | undefined {
  if (choice.stopReason !== undefined) return `the answer was cut at the stop ${JSON.stringify(choice.stopReason)}`
  switch (choice.finishReason) {
    case 'length':
      return 'the answer was cut at the token limit'
    case 'abort':
    case 'cut':
      return 'the answer broke off'
    case 'stop':
    case 'tool-calls':
    case 'content-filter':
    case 'other':
      return undefined
  }
}

/** Describes how message `at` differs between the two requests. */
function describeEdit(node: CallNode, from: CallNode, at: number, histories: Histories): string {
  const [before, after] = [histories.of(from.turn)?.messages ?? [], histories.of(node.turn)?.messages ?? []]
  const name = nameOf(node, at, histories)
  if (after[at] !== undefined && after[at] === before[at + 1]) return `${nameOf(from, at, histories)} was left out`
  if (before[at] !== undefined && before[at] === after[at + 1]) return `${name} was inserted`
  const [old, now] = [histories.message(from.turn, at), histories.message(node.turn, at)]
  if (old === undefined || now === undefined) return `${name} was changed`
  if (old.role !== now.role) return `${name} stands where a ${old.role} message was`
  if (old.role === 'assistant') {
    return `${name}: ${differencesOf(now, old)[0]?.what ?? 'it was changed'}`
  }
  const [oldText, nowText] = [textOf(old), textOf(now)]
  return `${name}: ${oldText === nowText ? 'its media were changed' : `the text was ${change(oldText, nowText)}`}`
}

/** Names a message by its position from 1, system messages included. */
function nameOf({ turn }: CallNode, at: number, histories: Histories): string {
  const role: Message['role'] | undefined = histories.message(turn, at)?.role
  return `message ${(histories.of(turn)?.leading ?? 0) + at + 1}${role === undefined ? '' : ` (${role})`}`
}

// --- by what is left --------------------------------------------------------------------------------------------------

/**
 * No message identifies the conversation. A continued conversation shares at least its first prompt and, if both requests
 * could be parsed, also a part of the first answer.
 */
function byTokens(node: CallNode, { from, commonTokens: common }: ForkSituation, histories: Histories): Edge {
  let first = from
  while (first.edge.verdict === 'exact') first = first.edge.parent
  const begun = first.response.promptIds.length
  const isReadable = histories.of(node.turn) !== undefined && histories.of(first.turn) !== undefined
  const least = isReadable ? begun + 1 : begun - Math.min(OPENING, begun >>> 2)
  const note = node.turn.forced['begins']
  const isNew = note === 'first-call' || note === 'new-conversation'
  if (isNew || begun === 0 || common < least) return { verdict: 'root', reason: 'new-conversation' }
  const detail = `the prompt goes along with an earlier call for ${common} tokens; the messages do not show why no further`
  return { verdict: 'forked', from, ...(gatewayCause(node) ?? { reason: 'unknown', detail }), commonTokens: common }
}

/** Returns the reason that the gateway recorded when it could not send the prompt as a literal continuation. */
function gatewayCause({ turn }: CallNode): Cause | undefined {
  const note = turn.forced['begins']
  switch (note) {
    case 'edited-history':
    case 'tools-changed':
    case 'truncated-turn':
    case 'reasoning-stripped':
    case 'template-moves':
      return { reason: note, detail: `the gateway noted ${note} when the call was made` }
    case 'forgotten':
      return { reason: note, detail: 'the gateway had removed the earlier call from its memory' }
    case 'foreign-turn':
      return { reason: 'edited-history', detail: 'the gateway met an assistant message that no recorded call sampled' }
    default:
      return undefined
  }
}
