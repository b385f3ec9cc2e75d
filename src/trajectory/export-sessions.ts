import { RolloutError } from '../model/failure.ts'
import type { Exclusion, ExclusionReason } from '../model/sample.ts'
import { lacksLogprob } from '../model/sample-facts.ts'
import type { SessionRecord } from '../model/session.ts'
import { buildSession, type BuildOptions } from './build-session.ts'
import { scoreSession, type ScoredSession, type SessionScore } from './score-session.ts'
import type { ExportNeed } from './exporters/exporter.ts'
import type { ExportSink } from './sinks/sink.ts'

/** A session that is loaded on demand. */
export interface ExportSource {
  id: string
  load: () => Promise<SessionRecord>
}

export interface ExportOptions {
  build: BuildOptions
  /** By session id. Other sessions get no reward. */
  scores?: ReadonlyMap<string, SessionScore>
  advantages?: ReadonlyMap<string, number>
  /** Required values of the exporter; used only for the report. */
  needs?: readonly ExportNeed[] | undefined
  /** Called after each session, also after a failed one. */
  onSession?: () => void
}

export interface ExportReport {
  /** Sessions written by this export. `resumed…` counts those of the interrupted export before. */
  sessions: number
  resumedSessions: number
  samples: number
  resumedSamples: number
  bytes: number
  /** Tokens of the sessions written by this export. `sampled` = `trained` + `excluded`. */
  tokens: { sampled: number; trained: number; excluded: number }
  /** Sampled tokens that no sample trains, with the explanation of one call. */
  exclusions: Partial<Record<ExclusionReason, { calls: number; tokens: number; example: string }>>
  /** Samples that the format cannot represent, by the missing value. Included in `samples`. */
  refused: Partial<Record<ExportNeed, number>>
  /** Sessions that were not written. */
  failed: { session: string; code: string; message: string }[]
  /** Written sessions whose recording has gaps or was not closed. */
  incomplete: string[]
  /** Number of written sessions without a reward, if `scores` is set. */
  unscored: number
}

/**
 * Exports sessions one at a time, so that memory does not grow with their number. Reports a session that cannot be read or
 * built and continues with the next. An error of the sink ends the export.
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

/** Loads, builds and scores a session. Undefined if that failed. */
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
    // Creates every sample once before any is written: a custom builder may fail at any of them.
    const lacks = lacksOf(scored, options.needs ?? [])
    for (const lack of lacks) report.refused[lack] = (report.refused[lack] ?? 0) + 1
    return scored
  } catch (error) {
    const message = error instanceof Error ? error.message : String(error)
    report.failed.push({ session: id, code: error instanceof RolloutError ? error.code : 'internal.bug', message })
    return undefined
  }
}

/** Returns the first missing value of each sample that will not be written. Creates every sample once. */
function lacksOf(session: ScoredSession, needs: readonly ExportNeed[]): ExportNeed[] {
  const lacks: ExportNeed[] = []
  for (const sample of session.samples()) {
    const lack = needs.find((need) => (need === 'reward' ? sample.reward === undefined : lacksLogprob(sample)))
    if (lack !== undefined) lacks.push(lack)
  }
  return lacks
}

/** Accepts a session without calls only if its recording is complete. */
function assertNotEmpty({ id, turns, complete, incompleteReasons }: SessionRecord): void {
  if (turns.length > 0 || complete) return
  const reasons = incompleteReasons.length === 0 ? '' : `: ${incompleteReasons.join('; ')}`
  throw new RolloutError('store.corrupt', `The call log of session ${id} holds no call${reasons}.`)
}

/** `trace_rewards` are matched by position, so their number must equal the number of samples. */
function assertRewardEach(id: string, score: SessionScore | undefined, rows: number): void {
  const rewards = score?.trace_rewards?.length ?? rows
  if (rewards === rows) return
  const problem = `${rewards} trace_rewards, but ${rows} samples with this builder and these filters`
  throw new RolloutError(
    'config.invalid',
    `Session ${id} has ${problem}. Export it with the builder and filters that were used for grading.`,
  )
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
