import { hasIdsAt } from '../lib/net/token-hash.ts'
import type { Sample, SampleCall, Span } from '../model/sample.ts'
import { recordedLogprobMode } from '../model/steering.ts'
import { toCallSampling } from '../model/turn-sampling.ts'
import type { Part, Row } from './builders/builder.ts'
import type { CallNode, RequestReader } from './graph/call-graph.ts'
import { parserFailureOf } from './parser-failure.ts'
import { messagesOf } from './sample-messages.ts'

/** Determines the provenance of the tokens between two answers. `from` counts from the part's first token. */
export type AttributeContext = (part: Part, before: CallNode | undefined) => Span[]

export interface SampleDeps {
  reader: RequestReader
  /** Absent: all context tokens get the provenance `context`. */
  attribute?: AttributeContext
}

export interface SampleHeader {
  id: string
  builder: string
  weight: number
  shared?: Sample['shared']
}

/** Creates the sample of a row. Only this function copies tokens. */
export function toSample(row: Row, header: SampleHeader, deps: SampleDeps): Sample {
  const length = lengthOf(row.parts)
  const ids = new Int32Array(length)
  const mask = new Uint8Array(length)
  const logprobs = new Float32Array(length).fill(Number.NaN)
  const calls: SampleCall[] = []
  let mismatchedTokens = 0
  let at = 0
  for (const part of row.parts) {
    ids.set(part.ids, at)
    const end = at + part.ids.length
    if (part.isSampled) {
      logprobs.set(part.call.choice.logprobs, at)
      if (part.isTrained) {
        mask.fill(1, at, end)
        if (!hasRecordedContext(ids, at, part.call)) mismatchedTokens += part.ids.length
      }
      calls.push(toSampleCall(part, at, end))
    }
    at = end
  }
  const last = calls.findLast(({ isTrained }) => isTrained) as SampleCall
  return {
    ...header,
    sessionId: row.parts[0]?.call.turn.sessionId ?? '',
    label: last.label,
    ids,
    promptLength: lengthOf(row.parts.slice(0, row.promptParts)),
    mask,
    logprobs,
    calls,
    finishReason: last.finishReason,
    mismatchedTokens,
    spans: () => spansOf(row.parts, deps.attribute),
    messages: () => messagesOf(row, deps.reader),
  }
}

export function lengthOf(parts: readonly Part[]): number {
  return parts.reduce((sum, { ids }) => sum + ids.length, 0)
}

/** Whether the tokens before position `at` equal the prompt of the call. */
function hasRecordedContext(ids: Int32Array, at: number, { response }: CallNode): boolean {
  return response.promptIds.length === at && hasIdsAt(ids, 0, response.promptIds)
}

function toSampleCall({ call, isTrained }: Part, from: number, to: number): SampleCall {
  const { turn, choice, response } = call
  return {
    key: call.key,
    turnId: turn.id,
    choice: choice.index,
    label: call.label,
    from,
    to,
    isTrained,
    finishReason: choice.finishReason,
    grade: response.grade,
    ...versionsOf(call),
    sampling: turn.sampling && toCallSampling(turn.sampling),
    logprobMode: recordedLogprobMode(turn),
    steeredBy: turn.steeredBy,
    startedAt: turn.startedAt,
    endedAt: turn.endedAt,
    hasParserFailure: parserFailureOf(choice) !== undefined,
  }
}

function versionsOf({ choice, response }: CallNode): Pick<SampleCall, 'weightVersion' | 'newestWeightVersion'> {
  const { weightVersion } = response
  if (weightVersion === undefined) return {}
  const last = choice.weightSpans?.at(-1)
  const newest = last?.newest ?? last?.version ?? weightVersion
  return newest === weightVersion ? { weightVersion } : { weightVersion, newestWeightVersion: newest }
}

// --- where tokens come from -------------------------------------------------------------------------------------------

function spansOf(parts: readonly Part[], attribute: AttributeContext | undefined): Span[] {
  const spans: Span[] = []
  let at = 0
  let before: CallNode | undefined
  for (const part of parts) {
    if (part.isSampled) {
      spans.push(...sampledSpans(part.call, at))
      before = part.call
    } else if (before === undefined) {
      spans.push(...promptSpans(part, attribute))
    } else {
      spans.push(...contextSpans(part, before, at, attribute))
    }
    at += part.ids.length
  }
  return spans
}

function contextSpans(
  part: Part,
  before: CallNode | undefined,
  at: number,
  attribute: AttributeContext | undefined,
): Span[] {
  if (part.ids.length === 0) return []
  if (attribute === undefined) return [{ from: at, provenance: 'context' }]
  return attribute(part, before).map((span) => ({ ...span, from: span.from + at }))
}

/** The first prompt of a row may contain answers of calls that another row trains. */
function promptSpans(part: Part, attribute: AttributeContext | undefined): Span[] {
  const ancestors: CallNode[] = []
  for (let { edge } = part.call; edge.verdict === 'exact'; { edge } = edge.parent) ancestors.push(edge.parent)
  const spans: Span[] = []
  let at = 0
  let before: CallNode | undefined
  for (const call of [...ancestors.reverse(), part.call]) {
    const ids = call.response.promptIds.subarray(at)
    spans.push(...contextSpans({ ...part, call, ids }, before, at, attribute))
    at += ids.length
    if (call !== part.call) spans.push(...sampledSpans(call, at))
    at += call.choice.ids.length
    before = call
  }
  return spans
}

/** Returns one span per weight version of the sampled tokens. */
function sampledSpans(call: CallNode, at: number): Span[] {
  if (call.choice.ids.length === 0) return []
  const { weightVersion } = call.response
  const known: { from: number; version?: string; newest?: string }[] = call.choice.weightSpans ?? [
    { from: 0, version: weightVersion },
  ]
  // The first known version may start within the answer.
  const changes = known[0]?.from === 0 ? known : [{ from: 0 }, ...known]
  return changes.map(({ from, version, newest }) => ({
    from: at + from,
    provenance: 'sampled',
    call: call.key,
    weightVersion: version,
    newestWeightVersion: newest,
  }))
}
