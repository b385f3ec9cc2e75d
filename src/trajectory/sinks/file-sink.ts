import { existsSync } from 'node:fs'
import { rename } from 'node:fs/promises'
import { RolloutError } from '../../model/failure.ts'
import type { Exporter } from '../exporters/exporter.ts'
import { Journal, readJournal, type JournalEntry } from './journal.ts'
import { OutputFile, syncFolderOf } from './output-file.ts'
import type { ExportSink, ExportStartOptions } from './sink.ts'

/** How often the disk is waited for; what came after is written again when an export goes on. */
const CHECKPOINT_MS = 250

export interface FileSinkOptions extends ExportStartOptions {
  path: string
  /** Milliseconds, for how often to make sure; any origin. */
  now: () => number
}

/**
 * One file, of a format that may be cut after any session. It is written as `<path>.partial`, with `<path>.progress`
 * beside it, and gets its name when it is whole; what was there under that name stays until then. Undefined when
 * an export to resume has nothing left to do.
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
  const entries: JournalEntry[] = []
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
    const message = `The unfinished export cannot go on: ${problem}. Export without --resume.`
    throw new RolloutError('config.invalid', message, { cause: error })
  })
}
