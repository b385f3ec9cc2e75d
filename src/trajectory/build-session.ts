import * as z from 'zod'
import { RolloutError } from '../model/failure.ts'
import { toPolicyVersion } from '../model/policy.ts'
import type { SessionRecord } from '../model/session.ts'
import type { Exclusion, ExclusionReason, Label, Sample } from '../model/sample.ts'
import type { Builder, SamplePlan, Row } from './builders/builder.ts'
import { buildGraph } from './graph/build-graph.ts'
import { breakOf, type CallGraph, type CallNode, type BreakReason, type RequestReader } from './graph/call-graph.ts'
import { whyNotTrained, type CallFilter } from './select-calls.ts'
import { lengthOf, toSample, type AttributeContext } from './to-sample.ts'

/**
 * Weight of a sample within its session. `tokens`: its share of the trained tokens, so that the weighted mean over samples
 * equals the mean over the session's tokens. `equal`: 1 / number of samples.
 */
export const Weighting = z.enum(['tokens', 'equal'])
export type Weighting = z.infer<typeof Weighting>

export interface BuildOptions {
  builder: Builder
  filter: CallFilter
  weighting: Weighting
  reader: RequestReader
  attribute?: AttributeContext
  /** Replaces `reader` and `attribute` if they depend on the session. */
  forSession?: (session: SessionRecord) => Pick<BuildOptions, 'reader' | 'attribute'>
}

/** The training data of one session. */
export interface BuiltSession {
  session: SessionRecord
  graph: CallGraph
  exclusions: Exclusion[]
  summary: BuildSummary
  /** Creates samples one at a time, always in the same order: samples may need more memory than the records. */
  samples(): Iterable<Sample>
}

export interface BuildSummary {
  builder: string
  /** Recorded turns. */
  turns: number
  /** Answers. A turn may have several. */
  calls: number
  rows: number
  trainedCalls: number
  /** Trained calls per row; 0 without rows. */
  mergeRatio: number
  /** Trained calls of the main conversation, and rows that end with one. */
  main: { calls: number; rows: number }
  /** Calls that continue an earlier call, and those that continue the newest one token for token. */
  edges: { all: number; exact: number }
  forks: Partial<Record<BreakReason, number>>
  labels: Partial<Record<Label, number>>
  /** `sampled` = `trained` + `excluded`. */
  tokens: { sampled: number; trained: number; excluded: number }
  /** Number of calls without a trained token, by reason. */
  excludedCalls: Partial<Record<ExclusionReason, number>>
  /** Oldest policy version of a trained token. Absent: no trained call has a version. */
  oldestVersion?: number
  /** Tokens of all samples, prompts included. */
  rowTokens: number
  /** Trained tokens whose context differs from the engine's prompt. 0 without `splice`. */
  mismatchedTokens: number
}

/** Builds training samples from recorded calls. Pure; throws `internal.bug` if the builder's rows are invalid. */
export function buildSession(session: SessionRecord, given: BuildOptions): BuiltSession {
  const options = { ...given, ...given.forSession?.(session) }
  const graph = buildGraph(session, options.reader)
  const refused = new Map(graph.nodes.map((node) => [node, whyNotTrained(node, options.filter)]))
  const mayTrain = (node: CallNode): boolean => refused.get(node) === undefined
  const plan = options.builder.plan(graph, mayTrain)
  const trained = trainedOnce(plan, mayTrain, options.builder.name)
  const exclusions = exclusionsOf(graph, trained, (node) => refused.get(node) ?? plan.leftOut.get(node))
  const headerOf = createHeaders(session, plan.rows, options)
  const samples = function* (): Generator<Sample> {
    for (const [index, row] of plan.rows.entries()) {
      const sample = toSample(row, headerOf(row, index), options)
      if (sample.mismatchedTokens > 0 && !options.builder.mayMismatch) {
        throw broken(
          options.builder.name,
          `${sample.mismatchedTokens} tokens of row ${index} do not have the context that the engine read`,
        )
      }
      yield sample
    }
  }
  return { session, graph, exclusions, samples, summary: summarise(graph, plan, trained, exclusions, options, samples) }
}

/** Asserts that no call is trained twice and that only trainable calls are trained. Returns the trained calls. */
function trainedOnce(plan: SamplePlan, mayTrain: (node: CallNode) => boolean, builder: string): Set<CallNode> {
  const trained = new Set<CallNode>()
  for (const { parts } of plan.rows) {
    let inRow = 0
    for (const { call, isTrained, isSampled } of parts) {
      if (!isTrained) continue
      if (!isSampled || !mayTrain(call)) throw broken(builder, `${call.key} must not be trained`)
      if (trained.has(call)) throw broken(builder, `${call.key} is trained twice`)
      trained.add(call)
      inRow += 1
    }
    if (inRow === 0) throw broken(builder, 'a row has no trained token')
  }
  return trained
}

function broken(builder: string, what: string): RolloutError {
  return new RolloutError('internal.bug', `Builder ${builder} returned an invalid plan: ${what}.`)
}

function exclusionsOf(
  graph: CallGraph,
  trained: ReadonlySet<CallNode>,
  why: (node: CallNode) => Pick<Exclusion, 'reason' | 'detail'> | undefined,
): Exclusion[] {
  const answers = graph.nodes
    .filter((node) => !trained.has(node))
    .map((node) => ({
      turnId: node.turn.id,
      choice: node.choice.index,
      tokens: node.choice.ids.length,
      ...(why(node) ?? { reason: 'left-out-by-builder' as const, detail: 'the builder did not use this call' }),
    }))
  const silent = graph.silent.map((turn) => ({
    turnId: turn.id,
    tokens: 0,
    ...(turn.endedAt === undefined
      ? { reason: 'unfinished' as const, detail: 'the call has no recorded end' }
      : turn.failure === undefined
        ? { reason: 'no-answer' as const, detail: 'the engine gave no answer' }
        : { reason: 'failed' as const, detail: `${turn.failure.code}: ${turn.failure.message}` }),
  }))
  const duplicates = graph.duplicates.map((turn) => ({
    turnId: turn.id,
    tokens: 0,
    reason: 'duplicate-record' as const,
    detail: 'another record of the same call is used',
  }))
  return [...answers, ...silent, ...duplicates]
}

function createHeaders(
  session: SessionRecord,
  rows: readonly Row[],
  { builder, weighting }: BuildOptions,
): (row: Row, index: number) => Parameters<typeof toSample>[1] {
  const idOf = (index: number): string => `${session.id}/${index}`
  const total = rows.reduce((sum, row) => sum + trainedTokens(row), 0)
  return (row, index) => ({
    id: idOf(index),
    builder: builder.name,
    weight: weighting === 'equal' ? 1 / rows.length : trainedTokens(row) / total,
    shared: row.shared && { with: idOf(row.shared.row), length: row.shared.length },
  })
}

function trainedTokens(row: Row): number {
  return lengthOf(row.parts.filter((part) => part.isTrained))
}

function summarise(
  graph: CallGraph,
  plan: SamplePlan,
  trained: ReadonlySet<CallNode>,
  exclusions: readonly Exclusion[],
  { builder }: BuildOptions,
  samples: () => Iterable<Sample>,
): BuildSummary {
  const edges = graph.nodes.map(({ edge }) => edge)
  const isMain = (row: Row): boolean => row.parts.findLast((part) => part.isTrained)?.call.label === 'main'
  const tokensOf = (nodes: Iterable<CallNode>): number =>
    [...nodes].reduce((sum, { choice }) => sum + choice.ids.length, 0)
  return {
    builder: builder.name,
    turns: new Set(graph.nodes.map(({ turn }) => turn)).size + graph.silent.length,
    calls: graph.nodes.length,
    rows: plan.rows.length,
    trainedCalls: trained.size,
    mergeRatio: plan.rows.length === 0 ? 0 : trained.size / plan.rows.length,
    main: {
      calls: [...trained].filter(({ label }) => label === 'main').length,
      rows: plan.rows.filter(isMain).length,
    },
    edges: {
      all: edges.filter(({ verdict }) => verdict !== 'root').length,
      exact: edges.filter((edge) => edge.verdict === 'exact' && edge.passedOver === undefined).length,
    },
    forks: countBy(edges.map((edge) => breakOf(edge)?.reason).filter((reason) => reason !== undefined)),
    labels: countBy(graph.nodes.map(({ label }) => label)),
    tokens: {
      sampled: tokensOf(graph.nodes),
      trained: tokensOf(trained),
      excluded: exclusions.reduce((sum, { tokens }) => sum + tokens, 0),
    },
    excludedCalls: countBy(exclusions.map(({ reason }) => reason)),
    ...oldestOf(trained),
    rowTokens: plan.rows.reduce((sum, { parts }) => sum + lengthOf(parts), 0),
    mismatchedTokens: builder.mayMismatch ? mismatchedIn(samples()) : 0,
  }
}

function oldestOf(calls: ReadonlySet<CallNode>): Pick<BuildSummary, 'oldestVersion'> {
  const versions = [...calls].flatMap(({ response }) => toPolicyVersion(response.weightVersion) ?? [])
  return versions.length === 0 ? {} : { oldestVersion: Math.min(...versions) }
}

function mismatchedIn(samples: Iterable<Sample>): number {
  let sum = 0
  for (const { mismatchedTokens } of samples) sum += mismatchedTokens
  return sum
}

function countBy<T extends string>(values: readonly T[]): Partial<Record<T, number>> {
  const counts: Partial<Record<T, number>> = {}
  for (const value of values) counts[value] = (counts[value] ?? 0) + 1
  return counts
}
