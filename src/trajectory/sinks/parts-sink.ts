import { mkdir, readdir, rename, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { RolloutError } from '../../model/failure.ts'
import type { Exporter, ExportWriter } from '../exporters/exporter.ts'
import { Journal, readJournal, type ExportEntry } from './journal.ts'
import { OutputFile, syncFolderOf } from './output-file.ts'
import type { ExportSink, ExportStartOptions } from './sink.ts'

export interface PartsSinkOptions extends ExportStartOptions {
  dir: string
  /** A part ends with the session that reaches either limit. */
  partSamples?: number
  partBytes?: number
}

interface Part {
  file: OutputFile
  writer: ExportWriter
  entries: ExportEntry[]
  samples: number
}

/** Hidden files, so that programs that read all files of the folder skip them. */
const PROGRESS = '.progress.jsonl'
const UNFINISHED = '.part.partial'

/**
 * Writes a folder of complete files: `part-00000.parquet` and so on. A part is renamed when it is complete, and only then do
 * its sessions count as written. Undefined if the export to resume is already complete.
 */
export async function openPartsSink(exporter: Exporter, options: PartsSinkOptions): Promise<ExportSink | undefined> {
  const { dir, fingerprint, partSamples = 100, partBytes = 64 * 2 ** 20 } = options
  const nameOf = (part: number): string => join(dir, `part-${String(part).padStart(5, '0')}.${exporter.extension}`)
  await mkdir(dir, { recursive: true })
  const names = await readdir(dir)
  const found = options.resume ? await readJournal(join(dir, PROGRESS), fingerprint) : undefined
  if (options.resume && found === undefined && names.some(isPart)) return undefined
  if (!options.resume && names.some((name) => !isOurs(name))) {
    const message = `${dir} is not empty. Use an empty folder, or continue an interrupted export with --resume.`
    throw new RolloutError('config.invalid', message)
  }
  const before = found ?? []
  const journal = await Journal.start(join(dir, PROGRESS), fingerprint, before)
  let number = (before.at(-1)?.part ?? -1) + 1
  let bytes = before.at(-1)?.bytes ?? 0
  const start = { sessions: before.length, samples: before.reduce((sum, { samples }) => sum + samples, 0) }
  const resumed = { sessions: new Set(before.map(({ session }) => session)), samples: start.samples }
  // A part that is complete but missing from the journal is removed and written again.
  const finished = new Set(Array.from({ length: number }, (_, part) => nameOf(part)))
  for (const name of names.filter(isPart)) if (!finished.has(join(dir, name))) await rm(join(dir, name))
  let part: Part | undefined
  let isOpen = true

  const openPart = async (): Promise<Part> => ({
    file: await OutputFile.create(join(dir, UNFINISHED)),
    writer: exporter.open({ ...start }),
    entries: [],
    samples: 0,
  })

  const finishPart = async ({ file, writer, entries, samples }: Part): Promise<void> => {
    await file.write(writer.end())
    await file.sync()
    await file.close()
    part = undefined
    await rename(join(dir, UNFINISHED), nameOf(number))
    await syncFolderOf(nameOf(number))
    bytes += file.length
    await journal.append(entries.map((entry) => ({ ...entry, bytes, part: number })))
    start.sessions += entries.length
    start.samples += samples
    number += 1
  }

  return {
    resumed,
    get bytesWritten() {
      return bytes + (part?.file.length ?? 0)
    },
    async add(session) {
      part ??= await openPart()
      await part.file.write(part.writer.add(session))
      const { session: record, summary } = session.built
      part.entries.push({ session: record.id, samples: summary.rows, bytes: 0 })
      part.samples += summary.rows
      if (part.samples >= partSamples || part.file.length >= partBytes) await finishPart(part)
    },
    async end() {
      // An export without samples still writes one part, so that readers find the columns.
      if (part !== undefined || number === 0) await finishPart(part ?? (await openPart()))
      isOpen = false
      await journal.remove()
    },
    async [Symbol.asyncDispose]() {
      if (!isOpen) return
      await part?.file.close()
      await journal.close()
    },
  }
}

function isPart(name: string): boolean {
  return /^part-\d+\./.test(name)
}

/** Whether an interrupted export left this file, which holds no finished data. */
function isOurs(name: string): boolean {
  return name === PROGRESS || name === UNFINISHED
}
