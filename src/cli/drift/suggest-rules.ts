import { hash } from 'node:crypto'
import { applyQuirks } from '../../gateway/quirks/index.ts'
import { toQuirk, type QuirkRule } from '../../gateway/quirks/rule.ts'
import { hasIdsAt } from '../../lib/net/token-hash.ts'
import type { Message } from '../../model/message.ts'
import type { Turn, TurnRequest } from '../../model/turn.ts'
import { breakOf, type CallGraph, type CallNode, type RequestReader } from '../../trajectory/graph/call-graph.ts'
import { deriveVolatile, type VolatilePiece } from './derive-pattern.ts'
import { callNumber } from './find-breaks.ts'

/** Renders the prompt of a request as the engine does, with or without the tokens that open the answer. */
export type RenderPrompt = (request: TurnRequest, options: { opensAnswer: boolean }) => Int32Array

export interface Suggestion {
  rule: QuirkRule
  pieces: VolatilePiece[]
}

/** Counts without (`before`) and with (`after`) the rules. */
export interface Gain {
  of: number
  before: number
  after: number
}

export interface Proof {
  /** Calls whose messages begin with all messages of an earlier call. */
  messages: Gain
  /** Diverging prompts that, rendered, begin with the prompt that they continue; absent without a renderer. */
  tokens?: Gain
}

export interface SuggestResult {
  suggestions: Suggestion[]
  /** Rejected rules with the reasons. */
  refused: { rule: QuirkRule; why: string }[]
  /** Effect of all suggestions together. */
  proof: Proof
}

/**
 * Suggests rules that normalise text that changes from call to call without a change of meaning. Each rule is checked on the
 * recorded requests: with it, more requests strictly extend each other, and no text changes that the harness repeats
 * unchanged. Rules never change answers.
 */
export function suggestRules(graph: CallGraph, reader: RequestReader, render?: RenderPrompt): SuggestResult {
  const calls = readCalls(graph, reader)
  const pairs = brokenPairs(calls)
  const refused: SuggestResult['refused'] = []
  const sound = candidatesOf(pairs).filter((candidate) => {
    const why = whyUnsound(candidate, calls, pairs)
    if (why !== undefined) refused.push({ rule: candidate.rule, why })
    return why === undefined
  })
  const suggestions = needed(sound, calls)
  for (const { rule } of sound.filter((candidate) => !suggestions.includes(candidate))) {
    refused.push({ rule, why: 'it does not increase the number of histories that extend each other' })
  }
  const normalise = normaliseWith(suggestions.map(({ rule }) => rule))
  return { suggestions, refused, proof: prove(calls, pairs, normalise, render) }
}

// --- the calls --------------------------------------------------------------------------------------------------------

interface Call {
  node: CallNode
  request: TurnRequest
}

interface Pair {
  from: Call
  to: Call
}

function readCalls({ nodes }: CallGraph, reader: RequestReader): Call[] {
  const seen = new Set<Turn>()
  return nodes.flatMap((node) => {
    const request = seen.has(node.turn) ? undefined : reader.readRequest(node.turn)
    seen.add(node.turn)
    return request === undefined ? [] : [{ node, request }]
  })
}

/** Returns the calls that diverge, each with the call that it probably continues. */
function brokenPairs(calls: readonly Call[]): Pair[] {
  return calls.flatMap((to, i) => {
    const { edge } = to.node
    const broken = breakOf(edge)
    if ((edge.verdict === 'exact' && broken === undefined) || i === 0) return []
    const from =
      broken === undefined
        ? calls.slice(0, i).findLast((earlier) => isLike(earlier.request, to.request))
        : calls.find(({ node }) => node.turn === broken.from.turn)
    return from === undefined ? [] : [{ from, to }]
  })
}

/** Whether the roles of a conversation are the beginning of another conversation's. */
function isLike({ messages: earlier }: TurnRequest, { messages: later }: TurnRequest): boolean {
  return earlier.length < later.length && earlier.every(({ role }, i) => role === later[i]?.role)
}

// --- what may be volatile ---------------------------------------------------------------------------------------------

/** Returns the texts at the same position of both requests. Rules do not apply to texts of the assistant. */
function textPairs({ from, to }: Pair): { role: Role; position: string; before: string; now: string }[] {
  return from.request.messages.flatMap((message, i) => {
    const other = to.request.messages[i]
    if (message.role === 'assistant' || other?.role !== message.role) return []
    return message.content.flatMap((part, j) => {
      const twin = other.content[j]
      if (part.type !== 'text' || twin?.type !== 'text') return []
      return [{ role: roleOf(message), position: `${i}.${j}`, before: part.text, now: twin.text }]
    })
  })
}

type Role = Exclude<QuirkRule['where']['role'], 'any'>

function roleOf({ role }: Exclude<Message, { role: 'assistant' }>): Role {
  return role === 'developer' ? 'system' : role
}

function candidatesOf(pairs: readonly Pair[]): Suggestion[] {
  const found = new Map<string, Suggestion>()
  const names = new Map<string, number>()
  for (const pair of pairs) {
    for (const { role, before, now } of textPairs(pair)) {
      if (before === now) continue
      for (const piece of deriveVolatile(before, now)) {
        const key = `${role} ${piece.find}`
        const known = found.get(key)
        if (known === undefined) found.set(key, { rule: toRule(role, piece, pair, names), pieces: [piece] })
        else known.pieces.push(piece)
      }
    }
  }
  return [...found.values()].slice(0, MAX_CANDIDATES)
}

/** A session with more changes has another problem. */
const MAX_CANDIDATES = 24

function toRule(role: Role, piece: VolatilePiece, { from, to }: Pair, names: Map<string, number>): QuirkRule {
  const name = `${role}-${piece.kind}`
  const count = (names.get(name) ?? 0) + 1
  names.set(name, count)
  const values = [piece.before, piece.now].map((value) => JSON.stringify(value)).join(' became ')
  return {
    name: count === 1 ? name : `${name}-${count}`,
    evidence: `In a ${role} message ${values} from call ${callNumber(from.node)} to ${callNumber(to.node)}.`,
    where: { role },
    find: piece.find,
    replace: piece.replace,
  }
}

// --- whether a rule is good -------------------------------------------------------------------------------------------

type Normalise = (request: TurnRequest) => TurnRequest

function normaliseWith(rules: readonly QuirkRule[]): Normalise {
  const quirks = rules.map(toQuirk)
  return (request) => applyQuirks(request, quirks).request
}

/** Returns the reason to reject a rule: it changes a text that the harness repeats unchanged. */
function whyUnsound({ rule }: Suggestion, calls: readonly Call[], pairs: readonly Pair[]): string | undefined {
  const normalise = normaliseWith([rule])
  const volatile = new Set(
    pairs.flatMap((pair) => textPairs(pair).flatMap((t) => (t.before === t.now ? [] : [t.position]))),
  )
  for (const { request, node } of calls) {
    const changed = normalise(request)
    for (const [i, message] of request.messages.entries()) {
      if (changed.messages[i] === message) continue
      const j = message.content.findIndex((part, at) => changed.messages[i]?.content[at] !== part)
      if (volatile.has(`${i}.${j}`) || !isRepeated(i, calls)) continue
      return `it would also change message ${i + 1} of call ${callNumber(node)}, which the harness repeats unchanged`
    }
  }
  return undefined
}

/** Whether more than one call has a message at this index. */
function isRepeated(index: number, calls: readonly Call[]): boolean {
  return calls.filter(({ request }) => request.messages.length > index).length > 1
}

/** Returns a minimal set of candidates with the effect of all of them. */
function needed(candidates: readonly Suggestion[], calls: readonly Call[]): Suggestion[] {
  const extending = (chosen: readonly Suggestion[]): number =>
    countExtending(calls, normaliseWith(chosen.map(({ rule }) => rule)))
  let chosen = [...candidates]
  const most = extending(chosen)
  if (most === extending([])) return []
  for (const candidate of candidates) {
    const fewer = chosen.filter((other) => other !== candidate)
    if (extending(fewer) >= most) chosen = fewer
  }
  return chosen
}

// --- proof ------------------------------------------------------------------------------------------------------------

function prove(
  calls: readonly Call[],
  pairs: readonly Pair[],
  normalise: Normalise,
  render: RenderPrompt | undefined,
): Proof {
  const asIs: Normalise = (request) => request
  const messages = {
    of: Math.max(0, calls.length - 1),
    before: countExtending(calls, asIs),
    after: countExtending(calls, normalise),
  }
  if (render === undefined) return { messages }
  const count = (change: Normalise): number => pairs.filter((pair) => isContinued(pair, change, render)).length
  return { messages, tokens: { of: pairs.length, before: count(asIs), after: count(normalise) } }
}

/** Counts the calls whose messages extend all messages of an earlier call. */
function countExtending(calls: readonly Call[], normalise: Normalise): number {
  const wholes = new Set<string>()
  let count = 0
  for (const { request } of calls) {
    const prefixes = prefixDigests(normalise(request))
    const whole = prefixes.pop()
    if (prefixes.some((digest) => wholes.has(digest))) count += 1
    if (whole !== undefined) wholes.add(whole)
  }
  return count
}

/** Returns a digest for each prefix of the conversation. */
function prefixDigests({ messages }: TurnRequest): string[] {
  let digest = ''
  return messages.map((message) => (digest = hash('sha1', digest + JSON.stringify(message), 'base64')))
}

function isContinued({ from, to }: Pair, normalise: Normalise, render: RenderPrompt): boolean {
  const start = render(normalise(from.request), { opensAnswer: false })
  return hasIdsAt(render(normalise(to.request), { opensAnswer: true }), 0, start)
}
