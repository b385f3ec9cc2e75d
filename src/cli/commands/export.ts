import { createHash } from 'node:crypto'
import { createWriteStream, statSync } from 'node:fs'
import { readFile } from 'node:fs/promises'
import { resolve } from 'node:path'
import { Writable } from 'node:stream'
import { setFlagsFromString } from 'node:v8'
import { describeError, errnoOf } from '../../lib/fs/errno.ts'
import { toVisibleJson, toVisibleLine } from '../../lib/visible-text.ts'
import { RolloutError } from '../../model/failure.ts'
import { createCallLogReader } from '../../store/call-log/reader.ts'
import type { SessionOrigin } from '../../store/store.ts'
import { isExporterModule } from '../../trajectory/create-exporter.ts'
import { exportSessions, type ExportReport, type ExportSource } from '../../trajectory/export-sessions.ts'
import type { Exporter } from '../../trajectory/exporters/exporter.ts'
import { exporters } from '../../trajectory/exporters/index.ts'
import { AdvantageMethod, advantagesOf, type SessionScore } from '../../trajectory/score-session.ts'
import { openFileSink } from '../../trajectory/sinks/file-sink.ts'
import { openPartsSink } from '../../trajectory/sinks/parts-sink.ts'
import type { ExportSink } from '../../trajectory/sinks/sink.ts'
import { openStreamSink } from '../../trajectory/sinks/stream-sink.ts'
import { buildFlags, toBuildOptions } from '../input/build-options.ts'
import { chooseRun, NO_RUN, scoresOfRun, type RunChoice } from '../input/choose-run.ts'
import { defineCommand, EXIT, option, toggle, usageError, type ExitCode } from '../command.ts'
import { loadExporter } from '../input/load-exporter.ts'
import { loadScores } from '../input/load-scores.ts'
import { createProgress } from '../views/progress.ts'
import { FROM_FLAG, resolveSession } from '../input/resolve-session.ts'
import { printError, printJson } from '../views/print.ts'

const NAME = 'export'

export const command = defineCommand({
  name: NAME,
  description: 'Export recorded sessions as training data.',
  subject: { name: 'session', description: 'Session id, folder of a session, "last" or "all"', default: 'all' },
  flags: {
    from: FROM_FLAG,
    format: option(
      `${exporters.kinds.join('|')}|FILE`,
      'Output format, or the path of a module that exports "exporter"',
      { default: 'jsonl' },
    ),
    set: option('KEY=VALUE,…', 'Options of the format (see docs/export.md)'),
    to: option('PATH', 'Output file, or folder for parquet and verl (default: standard output)'),
    run: option('ID', 'Sessions of this "polar run", or of "all" runs (default: the last run). Groups never span runs'),
    resume: toggle('Continue an interrupted export to the same --to'),
    salvage: toggle('Read the intact part of damaged sessions'),
    ...buildFlags,
    rewards: option('FILE', 'Scores: one JSON object with a session_id per line'),
    advantages: option(
      'HOW',
      'Compute advantages within each group_id: grpo-trl and grpo-verl divide by the standard deviation of the sample (N - 1), grpo-std by that of the population (N)',
      { choices: AdvantageMethod.options },
    ),
    json: toggle('Print the report as JSON on standard output; without --to on standard error'),
  },
  examples: [
    'polar export last --builder prefix_merging --format jsonl --to traces.jsonl',
    'polar export all --format parquet --to traces',
    'polar export all | jq .metadata.session_id',
  ],
  async run({ subject, flags }): Promise<ExitCode> {
    // Sessions are garbage after they are written: a growing young generation would cost 100 MB and save no time.
    setFlagsFromString('--semi-space-growth-factor=1')
    const build = await toBuildOptions(NAME, flags)
    const exporter = await loadExporter(NAME, flags.format, flags.set ?? '')
    if (flags.advantages !== undefined && flags.rewards === undefined) {
      throw usageError(NAME, '--advantages needs --rewards FILE')
    }
    const given = flags.rewards === undefined ? undefined : await loadScores(flags.rewards)
    const { dir, sessions, ids, run, runs } = await chooseSessions(subject, resolve(flags.from), flags.run)
    const scores = given && scoresOfRun(given, sessions, run)
    const fingerprint = await fingerprintOf({ ...flags, subject, run })
    await using sink = await openSink(exporter, { ...flags, fingerprint })
    if (sink === undefined) {
      printError(`${flags.to} is already complete. Without --resume it is written again.\n`)
      return EXIT.done
    }
    const progress = createProgress({ total: ids.length, label: 'Exporting' })
    const report = await exportSessions(sourcesOf(dir, ids, flags.salvage), sink, {
      build,
      needs: exporter.needs,
      ...(scores === undefined ? {} : { scores, advantages: toAdvantages(scores, flags.advantages) }),
      onSession: () => progress.advance(1, megabytes(sink.bytesWritten)),
    })
      .catch((error: unknown) => whenOutputFails(error, flags.to))
      .finally(() => progress.finish())
    if (report === undefined) return EXIT.done
    const unknown = scores === undefined ? 0 : scores.size - ids.filter((id) => scores.has(id)).length
    const json = { run: run === NO_RUN ? null : run, ...toJson(report, unknown) }
    if (!flags.json) printError(formatRun(run, runs) + formatReport(report, unknown))
    else printJson(json, 2, flags.to === undefined ? process.stderr : process.stdout)
    return report.failed.length > 0 ? EXIT.failed : EXIT.done
  },
})

interface Chosen extends RunChoice {
  dir: string
  /** All sessions of the folder. */
  sessions: SessionOrigin[]
}

async function chooseSessions(subject: string, from: string, run: string | undefined): Promise<Chosen> {
  if (subject !== 'all' && run !== undefined) throw usageError(NAME, '--run cannot be combined with a session')
  const { dir, id } = subject === 'all' ? { dir: from } : await resolveSession(subject, from)
  const sessions = await createCallLogReader({ dir }).listOrigins()
  if (id === undefined) return { dir, sessions, ...chooseRun(NAME, sessions, run) }
  const own = sessions.filter((session) => session.id === id)
  return { dir, sessions, ...chooseRun(NAME, own, undefined), ids: [id] }
}

function* sourcesOf(dir: string, ids: readonly string[], salvage: boolean): Generator<ExportSource> {
  const reader = createCallLogReader({ dir })
  for (const id of ids) yield { id, load: () => reader.load(id, { salvage }) }
}

function toAdvantages(scores: ReadonlyMap<string, SessionScore>, method: string | undefined): Map<string, number> {
  return method === undefined ? new Map() : advantagesOf([...scores.values()], AdvantageMethod.parse(method))
}

// --- the output -------------------------------------------------------------------------------------------------------

interface SinkFlags {
  to: string | undefined
  format: string
  resume: boolean
  fingerprint: string
}

async function openSink(exporter: Exporter, flags: SinkFlags): Promise<ExportSink | undefined> {
  const { to, format, resume, fingerprint } = flags
  if (to === undefined) {
    if (resume) throw usageError(NAME, '--resume needs --to')
    if (!exporter.isAppendable) throw usageError(NAME, `--format ${format} is written to a folder: add --to DIR`)
    return openStreamSink(exporter, process.stdout.isTTY ? createVisibleStream(process.stdout) : process.stdout)
  }
  try {
    if (!exporter.isAppendable) return await openPartsSink(exporter, { dir: to, resume, fingerprint })
    // A partial file cannot be written beside a pipe or a device.
    const found = statSync(to, { throwIfNoEntry: false })
    if (found?.isDirectory()) throw usageError(NAME, `${to} is a folder, and --format ${format} is written to a file`)
    if (found !== undefined && !found.isFile()) return openStreamSink(exporter, createWriteStream(to))
    return await openFileSink(exporter, { path: to, resume, fingerprint, now: () => performance.now() })
  } catch (error) {
    if (error instanceof RolloutError) throw error
    throw new RolloutError('config.invalid', `${to} cannot be written: ${describeError(error)}.`, { cause: error })
  }
}

/** Escapes hidden characters. Every format that can be printed is JSON. */
function createVisibleStream(terminal: NodeJS.WriteStream): Writable {
  return new Writable({
    decodeStrings: false,
    write(piece: string | Uint8Array, _encoding, done) {
      const text = typeof piece === 'string' ? piece : Buffer.from(piece).toString()
      terminal.write(toVisibleJson(text), (error) => done(error))
    },
  })
}

/** Hashes all flags that determine the output, and the contents of the files that they name. */
async function fingerprintOf(flags: Readonly<Record<string, string | boolean | undefined>>): Promise<string> {
  const { from: _from, to: _to, resume: _resume, json: _json, ...deciding } = flags
  const hash = createHash('sha256').update(JSON.stringify(deciding, Object.keys(deciding).toSorted()))
  const { rewards, 'builder-module': builder, format } = flags
  for (const path of [rewards, builder, isExporterModule(String(format)) && format]) {
    if (typeof path === 'string') hash.update(await readFile(path))
  }
  return hash.digest('hex').slice(0, 32)
}

/** Returns undefined if the reader of standard output closed it, which is not a failure. */
function whenOutputFails(error: unknown, to: string | undefined): undefined {
  if (to === undefined && errnoOf(error) === 'EPIPE') return undefined
  if (errnoOf(error) === undefined || to === undefined) throw error
  const message = `Writing ${to} failed: ${describeError(error)}. Solve this problem, then continue with --resume.`
  throw new RolloutError('store.unavailable', message, { cause: error })
}

// --- the report -------------------------------------------------------------------------------------------------------

function toJson(report: ExportReport, unknownScores: number): Record<string, unknown> {
  return {
    sessions: report.sessions,
    resumed_sessions: report.resumedSessions,
    samples: report.samples,
    resumed_samples: report.resumedSamples,
    bytes: report.bytes,
    tokens: report.tokens,
    exclusions: report.exclusions,
    refused: report.refused,
    failed: report.failed,
    incomplete: report.incomplete,
    unscored: report.unscored,
    unknown_scores: unknownScores,
  }
}

/** Empty where the folder holds no runs. */
function formatRun(run: string, runs: readonly string[]): string {
  const others = runs.filter((other) => other !== run)
  if (run === 'all') return `All runs: ${runs.join(', ')}\n`
  const hint = others.length === 0 ? '' : `; --run all or one of ${others.join(', ')} exports others`
  return run === NO_RUN && others.length === 0 ? '' : `Run ${run}${hint}\n`
}

function formatReport(report: ExportReport, unknownScores: number): string {
  const { exclusions, failed, incomplete, unscored, tokens } = report
  const lines = [
    `${count(report.samples, 'trace')} of ${count(report.sessions, 'session')}, ${tokens.trained} of ${tokens.sampled} sampled tokens trained, ${megabytes(report.bytes)}`,
  ]
  if (report.resumedSessions > 0) {
    const there = `${count(report.resumedSamples, 'trace')} of ${count(report.resumedSessions, 'session')}`
    lines.push(`  continued an interrupted export with ${there}`)
  }
  for (const [reason, { calls, tokens: left, example }] of Object.entries(exclusions)) {
    lines.push(`  excluded ${left} sampled tokens of ${count(calls, 'call')} (${reason}): ${example}`)
  }
  for (const [need, samples] of Object.entries(report.refused)) {
    const what = need === 'reward' ? 'a reward' : 'log probabilities'
    lines.push(`  excluded ${count(samples, 'trace')} without ${what}, which this format requires`)
  }
  if (incomplete.length > 0) lines.push(`  ${count(incomplete.length, 'recording')} not closed or with gaps`)
  if (unscored > 0) lines.push(`  ${count(unscored, 'session')} without a reward`)
  if (unknownScores > 0) lines.push(`  ${count(unknownScores, 'score')} of sessions that are not in the folder`)
  if (failed.length > 0) lines.push(`${count(failed.length, 'session')} could not be exported:`)
  for (const { session, message } of failed) lines.push(`  ${session}: ${message}`)
  if (failed.some(({ code }) => code === 'store.corrupt'))
    lines.push('  --salvage reads the intact part of damaged sessions.')
  return lines.map((line) => `${toVisibleLine(line)}\n`).join('')
}

function megabytes(bytes: number): string {
  return `${(bytes / 1e6).toFixed(bytes < 1e7 ? 2 : 0)} MB`
}

function count(number: number, noun: string): string {
  return `${number} ${noun}${number === 1 ? '' : 's'}`
}
