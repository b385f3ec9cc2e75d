import { isDeepStrictEqual } from 'node:util'
import { readRequest, requestReader } from '../../src/compose/read-request.ts'
import { AnswerHistory } from '../../src/gateway/sessions/answer-history.ts'
import { MARKER } from '../../packages/tiny-engine/src/policies/script-schema.ts'
import { textOf, type Message, type ToolCall } from '../../src/model/message.ts'
import type { SessionRecord } from '../../src/model/session.ts'
import type { Turn, TurnRequest } from '../../src/model/turn.ts'
import { buildSession, type BuildSummary } from '../../src/trajectory/build-session.ts'
import { builders } from '../../src/trajectory/builders/index.ts'
import { CallFilter } from '../../src/trajectory/select-calls.ts'
import type { HarnessRun } from './harness-run.ts'
import { CHILD } from './harness-scenarios.ts'

/** Behaviour of a harness in a run. Does not depend on time, chance or the machine. */
export interface RunFacts {
  exitCode: number
  /** How the harness sent the prompt. `padded`: with white space around it. */
  prompt: 'exact' | 'padded' | 'changed'
  calls: number
  /** Number of `calls` by a sub-agent. */
  subagentCalls: number
  exactCalls: number
  /** Relation of each history of the main conversation to the history of the previous call. */
  history: HistoryFacts
  /** State of the sampled tool calls, name and arguments, in the history of the next call. */
  arguments: ArgumentFacts
  /** Images in the last request. */
  images: number
  /** Number of calls whose prompt begins with the ids of the previous prompt and its answer. */
  prefixKept: number
  trajectory: TrajectoryFacts
}

/** Training data of the run. */
export interface TrajectoryFacts {
  merged: BuildSummary
  /** The same run, merged like in NVIDIA Polar. */
  spliced: BuildSummary
  /** Number of calls that splicing drops. */
  lostBySplice: number
}

export interface HistoryFacts {
  extended: number
  /** The same request again: the harness did not accept the answer. */
  repeated: number
  edited: number
}

export interface ArgumentFacts {
  /** The harness sent the sampled bytes back. */
  verbatim: number
  /** The harness re-printed them, and the gateway restored the sampled bytes. */
  restored: number
  /** The engine reads other bytes than were sampled. */
  changed: number
}

export function factsOf({ session, exitCode, prompt }: HarnessRun): RunFacts {
  const calls = session.turns.map((turn) => ({ turn, request: requestOf(turn) }))
  const main = calls.filter(({ request }) => markerOf(request) !== CHILD)
  return {
    exitCode,
    prompt: promptFact(main[0]?.request, prompt),
    calls: calls.length,
    subagentCalls: calls.length - main.length,
    exactCalls: session.turns.filter((turn) => turn.response?.grade === 'exact').length,
    history: historyFacts(main.map(({ request }) => request.messages)),
    arguments: argumentFacts(main),
    images:
      main
        .at(-1)
        ?.request.messages.flatMap(({ content }) => content)
        .filter(isImage).length ?? 0,
    prefixKept: pairs(main).filter(([before, after]) => startsWith(before.turn, after.turn)).length,
    trajectory: trajectoryFacts(session),
  }
}

function trajectoryFacts(session: SessionRecord): TrajectoryFacts {
  const options = { filter: CallFilter.parse({}), weighting: 'tokens', reader: requestReader } as const
  const [merged, spliced] = [false, true].map((splice) => {
    const builder = builders.create({ kind: 'prefix_merging', splice }, {})
    return buildSession(session, { builder, ...options })
  })
  if (merged === undefined || spliced === undefined) throw new Error('two were built')
  const lostBySplice = spliced.exclusions.filter(({ reason }) => reason === 'lost-by-splice').length
  return { merged: merged.summary, spliced: spliced.summary, lostBySplice }
}

interface Call {
  turn: Turn
  request: TurnRequest
}

function requestOf(turn: Turn): TurnRequest {
  const request = readRequest(turn)
  if (request === undefined) throw new Error(`The request of call ${turn.index + 1} cannot be read.`)
  return request
}

/** Returns the marker of the engine's scenario. */
function markerOf(request: TurnRequest): string | undefined {
  const texts = request.messages.filter(({ role }) => role === 'user').map(textOf)
  return texts.flatMap((text) => [...text.matchAll(MARKER)]).at(-1)?.groups?.['name']
}

function promptFact(request: TurnRequest | undefined, prompt: string): RunFacts['prompt'] {
  const users = request?.messages.filter(({ role }) => role === 'user') ?? []
  const texts = users.flatMap(({ content }) => content).map((part) => (part.type === 'text' ? part.text : ''))
  if (texts.includes(prompt)) return 'exact'
  return texts.some((text) => text.trim() === prompt.trim()) ? 'padded' : 'changed'
}

function historyFacts(histories: readonly (readonly Message[])[]): HistoryFacts {
  const facts = { extended: 0, repeated: 0, edited: 0 }
  for (const [before, after] of pairs(histories)) {
    if (!isDeepStrictEqual(after.slice(0, before.length), before)) facts.edited += 1
    else if (after.length === before.length) facts.repeated += 1
    else facts.extended += 1
  }
  return facts
}

/** Computes the facts with the gateway's own memory of the same calls. */
function argumentFacts(calls: readonly Call[]): ArgumentFacts {
  const facts = { verbatim: 0, restored: 0, changed: 0 }
  const memory = new AnswerHistory(16 * 1024 * 1024)
  for (const [before, after] of pairs(calls)) {
    const { response } = before.turn
    if (response !== undefined) memory.remember(before.request, response)
    // A repeated request does not contain the previous answer.
    if (after.request.messages.length <= before.request.messages.length) continue
    const sent = toolCallsOf(after.request)
    const read = toolCallsOf(memory.restore(after.request))
    for (const call of response?.choices[0]?.message.toolCalls ?? []) {
      if (sent.get(call.id) === textOfCall(call)) facts.verbatim += 1
      else if (read.get(call.id) === textOfCall(call)) facts.restored += 1
      else facts.changed += 1
    }
  }
  return facts
}

function toolCallsOf(request: TurnRequest): Map<string, string> {
  const calls = request.messages.flatMap((message) => (message.role === 'assistant' ? message.toolCalls : []))
  return new Map(calls.map((call) => [call.id, textOfCall(call)]))
}

function textOfCall({ name, arguments: args }: ToolCall): string {
  return `${name} ${args}`
}

function startsWith({ response: before }: Turn, { response: after }: Turn): boolean {
  const expected = [...(before?.promptIds ?? []), ...(before?.choices[0]?.ids ?? [])]
  return expected.every((id, i) => after?.promptIds[i] === id)
}

function isImage(part: { type: string }): boolean {
  return part.type === 'image'
}

function pairs<T>(items: readonly T[]): [T, T][] {
  return items.slice(1).map((item, i) => [items[i] as T, item])
}
