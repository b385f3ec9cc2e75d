import { RolloutError } from '../model/failure.ts'
import type { Exclusion, ExclusionReason } from '../model/sample.ts'
import { lacksLogprob } from '../model/sample-facts.ts'
import type { SessionRecord } from '../model/session.ts'
import { buildSession, type BuildOptions } from './build-session.ts'
import { scoreSession, type ScoredSession, type SessionScore } from './score-session.ts'
import type { ExportNeed } from './exporters/exporter.ts'
import type { ExportSink } from './sinks/sink.ts'

/** A session that can be read when its turn comes. */
export interface ExportSource {
  id: string
  load: () => Promise<SessionRecord>
}

export interface ExportOptions {
  build: BuildOptions
  /** By session id; a session that is not in it stays without a reward. */
  scores?: ReadonlyMap<string, SessionScore>
  advantages?: ReadonlyMap<string, number>
  /** Of the exporter; only for the report. */
  needs?: readonly ExportNeed[] | undefined
  /** After each session, also one that could not be exported. */
  onSession?: () => void
}

export interface ExportReport {
  /** Written now, and by the interrupted export that this one went on from. */
  sessions: number
  resumedSessions: number
  samples: number
  resumedSamples: number
  bytes: number
  /** Of the sessions written now, as the rest below. `sampled` is the sum of the other two. */
  tokens: { sampled: number; trained: number; excluded: number }
  /** Sampled tokens that are trained nowhere, and one case in words. */
  exclusions: Partial<Record<ExclusionReason, { calls: number; tokens: number; example: string }>>
  /** Samples that the format does not take, by what they lack. They are counted in `samples`. */
  refused: Partial<Record<ExportNeed, number>>
  /** Nothing of these was written. */
  failed: { session: string; code: string; message: string }[]
  /** Written, but their recording has gaps or was not closed. */
  incomplete: string[]
  /** Written, without a reward although rewards were given. */
  unscored: number
}

/**
 * One session at a time, so that memory does not grow with their number. A session that cannot be read or built is named
 * in the report and keeps no other from being written; an error of the sink ends it all.
 */
export async function exportSessions(
  sources: Iterable<ExportSource> | AsyncIterable<ExportSource>,
  sink: ExportSink,
  options: ExportOptions,
): Promise<ExportReport> {
  const report = emptyReport(sink)
  for await (const source of sources) {
    if (!sink.resumed.sessions.has(source.id)) {
      const session = await prepare(source, options, report)
      if (session !== undefined) {
        await sink.add(session)
        count(report, session, options)
      }
    }
    options.onSession?.()
  }
  await sink.end()
  report.bytes = sink.bytesWritten
  return report
}

/** Read, built and scored; undefined where that was not possible. */
async function prepare(
  { id, load }: ExportSource,
  options: ExportOptions,
  report: ExportReport,
): Promise<ScoredSession | undefined> {
  try {
    const record = await load()
    assertNotEmpty(record)
    const built = buildSession(record, options.build)
    const score = options.scores?.get(id)
    assertRewardEach(id, score, built.summary.rows)
    const scored = scoreSession(built, score, options.advantages?.get(id))
    // A custom builder may fail at any sample; better now than with half of them written.
    const lacks = lacksOf(scored, options.needs ?? [])
    for (const lack of lacks) report.refused[lack] = (report.refused[lack] ?? 0) + 1
    return scored
  } catch (error) {
    const message = error instanceof Error ? error.message : String(error)
    report.failed.push({ session: id, code: error instanceof RolloutError ? error.code : 'internal.bug', message })
    return undefined
  }
}

/** What the samples that will not be written lack first. Makes every sample once. */
function lacksOf(session: ScoredSession, needs: readonly ExportNeed[]): ExportNeed[] {
  const lacks: ExportNeed[] = []
  for (const sample of session.samples()) {
    const lack = needs.find((need) => (need === 'reward' ? sample.reward === undefined : lacksLogprob(sample)))
    if (lack !== undefined) lacks.push(lack)
  }
  return lacks
}

/** A session without calls is fine when its recording says that there were none. */
function assertNotEmpty({ id, turns, complete, incompleteReasons }: SessionRecord): void {
  if (turns.length > 0 || complete) return
  const reasons = incompleteReasons.length === 0 ? '' : `: ${incompleteReasons.join('; ')}`
  throw new RolloutError('store.corrupt', `The call log of session ${id} holds no call${reasons}.`)
}

/** Rewards by position say nothing when the samples are others than those that were graded. */
function assertRewardEach(id: string, score: SessionScore | undefined, rows: number): void {
  const rewards = score?.trace_rewards?.length ?? rows
  if (rewards === rows) return
  const problem = `${rewards} trace_rewards, but ${rows} samples with this builder and these filters`
  throw new RolloutError('config.invalid', `Session ${id} has ${problem}. Export it as it was graded.`)
}

function emptyReport({ resumed }: ExportSink): ExportReport {
  return {
    sessions: 0,
    resumedSessions: resumed.sessions.size,
    samples: 0,
    resumedSamples: resumed.samples,
    bytes: 0,
    tokens: { sampled: 0, trained: 0, excluded: 0 },
    exclusions: {},
    refused: {},
    failed: [],
    incomplete: [],
    unscored: 0,
  }
}

function count(report: ExportReport, { built, score }: ScoredSession, { scores }: ExportOptions): void {
  const { summary, exclusions, session } = built
  report.sessions += 1
  report.samples += summary.rows
  report.tokens.sampled += summary.tokens.sampled
  report.tokens.trained += summary.tokens.trained
  report.tokens.excluded += summary.tokens.excluded
  for (const exclusion of exclusions) countExclusion(report, exclusion)
  if (!session.complete) report.incomplete.push(session.id)
  if (scores !== undefined && score?.outcome_reward == null && score?.trace_rewards == null) report.unscored += 1
}

function countExclusion({ exclusions }: ExportReport, { reason, detail, tokens }: Exclusion): void {
  const entry = (exclusions[reason] ??= { calls: 0, tokens: 0, example: detail })
  entry.calls += 1
  entry.tokens += tokens
}
