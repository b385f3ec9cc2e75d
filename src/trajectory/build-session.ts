import * as z from 'zod'
import { RolloutError } from '../model/failure.ts'
import type { SessionRecord } from '../model/session.ts'
import type { Exclusion, ExclusionReason, Label, Sample } from '../model/sample.ts'
import type { Builder, Plan, Row } from './builders/builder.ts'
import { buildGraph } from './graph/build-graph.ts'
import { breakOf, type CallGraph, type CallNode, type ForkReason, type RequestReader } from './graph/call-graph.ts'
import { whyNotTrained, type CallFilter } from './select-calls.ts'
import { lengthOf, toSample, type AttributeContext } from './to-sample.ts'

/**
 * How much of its session a sample is. `tokens`: its part of the trained tokens, so that a mean over each sample's tokens
 * gives the session's mean however it was split. `equal`: one over the number of samples.
 */
export const Weighting = z.enum(['tokens', 'equal'])
export type Weighting = z.infer<typeof Weighting>

export interface BuildOptions {
  builder: Builder
  filter: CallFilter
  weighting: Weighting
  reader: RequestReader
  attribute?: AttributeContext
  /** Takes the place of the two above where they depend on the session. */
  forSession?: (session: SessionRecord) => Pick<BuildOptions, 'reader' | 'attribute'>
}

/** All that was made of one session. */
export interface BuiltSession {
  session: SessionRecord
  graph: CallGraph
  exclusions: Exclusion[]
  summary: BuildSummary
  /** Made one at a time, in the same order every time: a session's samples may be larger than its records. */
  samples(): Iterable<Sample>
}

export interface BuildSummary {
  builder: string
  /** Recorded turns, and answers among them; a turn may have several. */
  turns: number
  calls: number
  rows: number
  trainedCalls: number
  /** Trained calls per row; 0 without rows. */
  mergeRatio: number
  /** Calls of the main conversation, and the rows they are in. */
  main: { calls: number; rows: number }
  /** Calls that go on from an earlier one, and those of them that do so token for token from the latest. */
  edges: { all: number; exact: number }
  forks: Partial<Record<ForkReason, number>>
  labels: Partial<Record<Label, number>>
  /** `sampled` is the sum of the other two. */
  tokens: { sampled: number; trained: number; excluded: number }
  /** Calls that are trained nowhere, by reason. */
  excludedCalls: Partial<Record<ExclusionReason, number>>
  /** Tokens of all samples, prompts included: what a trainer has to read. */
  rowTokens: number
  /** Trained tokens whose context is not what the engine read. 0 unless spliced. */
  mismatchedTokens: number
}

/** From recorded calls to training samples. Pure; throws when a builder's rows would say what is not so. */
export function buildSession(session: SessionRecord, given: BuildOptions): BuiltSession {
  const options = { ...given, ...given.forSession?.(session) }
  const graph = buildGraph(session, options.reader)
  const refused = new Map(graph.nodes.map((node) => [node, whyNotTrained(node, options.filter)]))
  const mayTrain = (node: CallNode): boolean => refused.get(node) === undefined
  const plan = options.builder.plan(graph, mayTrain)
  const trained = trainedOnce(plan, mayTrain, options.builder.name)
  const exclusions = exclusionsOf(graph, trained, (node) => refused.get(node) ?? plan.leftOut.get(node))
  const place = placer(session, plan.rows, options)
  const samples = function* (): Generator<Sample> {
    for (const [index, row] of plan.rows.entries()) {
      const sample = toSample(row, place(row, index), options)
      if (sample.mismatchedTokens > 0 && !options.builder.mayMismatch) {
        throw broken(options.builder.name, `${sample.mismatchedTokens} tokens of row ${index} in a foreign context`)
      }
      yield sample
    }
  }
  return { session, graph, exclusions, samples, summary: summarise(graph, plan, trained, exclusions, options, samples) }
}

/** A builder may leave a call out, but not train it twice, nor one that must not be. */
function trainedOnce(plan: Plan, mayTrain: (node: CallNode) => boolean, builder: string): Set<CallNode> {
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
    if (inRow === 0) throw broken(builder, 'a row without anything to train')
  }
  return trained
}

function broken(builder: string, what: string): RolloutError {
  return new RolloutError('internal.bug', `Builder ${builder} is wrong: ${what}.`)
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

function placer(
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
    ...(row.shared === undefined ? {} : { shared: { with: idOf(row.shared.row), length: row.shared.length } }),
  })
}

function trainedTokens(row: Row): number {
  return lengthOf(row.parts.filter((part) => part.isTrained))
}

function summarise(
  graph: CallGraph,
  plan: Plan,
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
    rowTokens: plan.rows.reduce((sum, { parts }) => sum + lengthOf(parts), 0),
    mismatchedTokens: builder.mayMismatch ? mismatchedIn(samples()) : 0,
  }
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
