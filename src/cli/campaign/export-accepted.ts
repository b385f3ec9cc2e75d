import { mkdir, rename, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { SessionReader } from '../../store/store.ts'
import type { BuildOptions } from '../../trajectory/build-session.ts'
import { exportSessions, type ExportReport } from '../../trajectory/export-sessions.ts'
import type { Exporter } from '../../trajectory/exporters/exporter.ts'
import type { ScoredSession, SessionScore } from '../../trajectory/score-session.ts'
import { openFileSink } from '../../trajectory/sinks/file-sink.ts'
import { openPartsSink } from '../../trajectory/sinks/parts-sink.ts'
import type { ExportSink } from '../../trajectory/sinks/sink.ts'
import type { Split } from './repositories.ts'
import type { SecretScrubber } from './secrets.ts'

/** An accepted trajectory. */
export interface Accepted {
  session_id: string
  task_id: string
  repository: string
  split: Split
  reward: number | null
  digest: string
  turns: number
}

/** One exported file, or folder of parts. */
export interface DataFile {
  format: string
  split: Split
  /** Relative to the folder of the campaign. */
  path: string
  sessions: number
  rows: number
  bytes: number
  /** Accepted sessions that could not be written. */
  failed: ExportReport['failed']
}

export interface AcceptedExport {
  /** Folder of the campaign. */
  dir: string
  reader: Pick<SessionReader, 'load'>
  build: BuildOptions
  exporters: readonly Exporter[]
  scrubber: SecretScrubber
  accepted: readonly Accepted[]
  scores: ReadonlyMap<string, SessionScore>
}

/**
 * Writes `data/FORMAT/SPLIT.jsonl` for every format and split, and `data/accepted.jsonl`. The folder is replaced when all
 * files are complete, so it never mixes two exports.
 */
export async function exportAccepted(options: AcceptedExport): Promise<DataFile[]> {
  const { dir, accepted, exporters } = options
  const target = join(dir, 'data')
  const [draft, old] = [`${target}.partial`, `${target}.old`]
  for (const folder of [draft, old]) await rm(folder, { recursive: true, force: true })
  await mkdir(draft, { recursive: true })
  const files: DataFile[] = []
  for (const exporter of exporters) {
    for (const split of ['train', 'test'] as const) {
      const sessions = accepted.filter((entry) => entry.split === split)
      // A reader of the folder would fail at an empty file.
      if (sessions.length === 0) continue
      const name = exporter.isAppendable ? `${split}.${exporter.extension}` : split
      const path = join(draft, exporter.name, name)
      const report = await writeFiles(exporter, path, sessions, options)
      const { samples: rows, bytes, failed } = report
      if (bytes === 0) await rm(path, { recursive: true, force: true })
      const relative = join('data', exporter.name, name)
      files.push({ format: exporter.name, split, path: relative, sessions: report.sessions, rows, bytes, failed })
    }
  }
  await writeFile(join(draft, 'accepted.jsonl'), accepted.map((entry) => `${JSON.stringify(entry)}\n`).join(''))
  await rename(target, old).catch(() => {})
  await rename(draft, target)
  await rm(old, { recursive: true, force: true })
  return files
}

async function writeFiles(
  exporter: Exporter,
  path: string,
  sessions: readonly Accepted[],
  { reader, build, scores, scrubber }: AcceptedExport,
): Promise<ExportReport> {
  await mkdir(join(path, '..'), { recursive: true })
  const start = { resume: false, fingerprint: '' }
  const opened = exporter.isAppendable
    ? openFileSink(exporter, { ...start, path, now: () => performance.now() })
    : openPartsSink(exporter, { ...start, dir: path })
  await using sink = (await opened)!
  const sources = sessions.map(({ session_id: id }) => ({ id, load: () => reader.load(id) }))
  const target = exporter.isTextOnly === true ? withoutSecrets(sink, scrubber) : sink
  return await exportSessions(sources, target, { build, scores, needs: exporter.needs })
}

/** Replaces secrets in the messages of every session that is added. */
function withoutSecrets(sink: ExportSink, scrubber: SecretScrubber): ExportSink {
  return {
    resumed: sink.resumed,
    get bytesWritten() {
      return sink.bytesWritten
    },
    add: (session) => sink.add(scrubSession(session, scrubber)),
    end: () => sink.end(),
    [Symbol.asyncDispose]: () => sink[Symbol.asyncDispose](),
  }
}

function scrubSession(session: ScoredSession, scrubber: SecretScrubber): ScoredSession {
  return {
    ...session,
    *samples() {
      for (const sample of session.samples()) {
        yield { ...sample, messages: () => scrubber.scrub(sample.messages()) as ReturnType<typeof sample.messages> }
      }
    },
  }
}
