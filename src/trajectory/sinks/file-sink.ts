import { existsSync } from 'node:fs'
import { rename } from 'node:fs/promises'
import { RolloutError } from '../../model/failure.ts'
import type { Exporter } from '../exporters/exporter.ts'
import { Journal, readJournal, type ExportEntry } from './journal.ts'
import { OutputFile, syncFolderOf } from './output-file.ts'
import type { ExportSink, ExportStartOptions } from './sink.ts'

/** Interval between syncs to disk. A resumed export repeats the sessions after the last sync. */
const CHECKPOINT_MS = 250

export interface FileSinkOptions extends ExportStartOptions {
  path: string
  /** Monotonic clock in milliseconds. */
  now: () => number
}

/**
 * Writes one file of an appendable format: `<path>.partial` with the journal `<path>.progress`, renamed to `path` when it is
 * complete. An existing file at `path` stays until then. Undefined if the export to resume is already complete.
 */
export async function openFileSink(exporter: Exporter, options: FileSinkOptions): Promise<ExportSink | undefined> {
  const { path, fingerprint, now } = options
  const [partial, progress] = [`${path}.partial`, `${path}.progress`]
  const found = options.resume ? await readJournal(progress, fingerprint) : undefined
  if (options.resume && existsSync(path) && !existsSync(partial)) {
    if (found !== undefined) await (await Journal.start(progress, fingerprint)).remove()
    return undefined
  }
  const before = found ?? []
  const samplesBefore = before.reduce((sum, { samples }) => sum + samples, 0)
  const length = before.at(-1)?.bytes ?? 0
  const file = await (length === 0 ? OutputFile.create(partial) : resumeFile(partial, length))
  const journal = await Journal.start(progress, fingerprint, before)
  const writer = exporter.open({ sessions: before.length, samples: samplesBefore })
  const entries: ExportEntry[] = []
  let checkedAt = now()
  let isOpen = true

  const checkpoint = async (): Promise<void> => {
    await file.sync()
    await journal.append(entries.splice(0))
    checkedAt = now()
  }

  return {
    resumed: { sessions: new Set(before.map(({ session }) => session)), samples: samplesBefore },
    get bytesWritten() {
      return file.length
    },
    async add(session) {
      await file.write(writer.add(session))
      const { session: record, summary } = session.built
      entries.push({ session: record.id, samples: summary.rows, bytes: file.length })
      if (now() - checkedAt >= CHECKPOINT_MS) await checkpoint()
    },
    async end() {
      await file.write(writer.end())
      await checkpoint()
      isOpen = false
      await file.close()
      await rename(partial, path)
      await syncFolderOf(path)
      await journal.remove()
    },
    async [Symbol.asyncDispose]() {
      if (!isOpen) return
      await file.close()
      await journal.close()
    },
  }
}

async function resumeFile(path: string, length: number): Promise<OutputFile> {
  return OutputFile.resume(path, length).catch((error: unknown) => {
    const problem = error instanceof Error ? error.message : String(error)
    const message = `The unfinished export cannot be resumed: ${problem}. Export without --resume.`
    throw new RolloutError('config.invalid', message, { cause: error })
  })
}
