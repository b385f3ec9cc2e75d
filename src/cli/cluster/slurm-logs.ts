import { open, readdir, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { pause } from '../../client/send.ts'
import type { Clock } from '../../lib/async/clock.ts'
import { errnoOf } from '../../lib/fs/errno.ts'
import { nodeIdOf, type SlurmRecord } from './slurm-record.ts'

export interface LogFile {
  /** Node id, or `server`. */
  name: string
  path: string
}

/** Finds the existing logs of submitted jobs, or of one node or task. */
export async function findLogs(record: SlurmRecord, wanted?: string): Promise<LogFile[]> {
  const all: LogFile[] = record.jobs.flatMap((job) =>
    Array.from({ length: job.tasks }, (_, task) => ({
      name: nodeIdOf(job, task),
      path: join(job.workDir, 'logs', `${job.jobId}_${task}.log`),
    })),
  )
  if (record.server !== undefined) {
    const { jobId, workDir } = record.server
    all.unshift({ name: 'server', path: join(workDir, 'logs', `${jobId}.log`) })
  }
  const chosen =
    wanted === undefined ? all : all.filter(({ name, path }) => name === wanted || path.endsWith(`/${wanted}.log`))
  const folders = new Map<string, Set<string>>()
  for (const { workDir } of [...record.jobs, ...(record.server === undefined ? [] : [record.server])])
    folders.set(join(workDir, 'logs'), new Set(await readdir(join(workDir, 'logs')).catch(() => [])))
  return chosen.filter(({ path }) => {
    const split = path.lastIndexOf('/')
    return folders.get(path.slice(0, split))?.has(path.slice(split + 1))
  })
}

/** Part of a log that is searched for its last lines. */
const TAIL_BYTES = 256 * 1024

/** Returns the last lines, and the offset of their end. */
export async function readTail(path: string, lines: number): Promise<{ text: string; end: number }> {
  await using file = await open(path)
  const { size } = await file.stat()
  const start = Math.max(0, size - TAIL_BYTES)
  const { buffer, bytesRead } = await file.read(Buffer.alloc(size - start), 0, size - start, start)
  const all = buffer.subarray(0, bytesRead).toString().split('\n')
  // The last element follows the last line break; the first may be part of a line.
  const whole = start > 0 ? all.slice(1) : all
  const keep = whole.slice(Math.max(0, whole.length - lines - 1))
  return { text: keep.join('\n'), end: start + bytesRead }
}

const POLL_MS = 500

/** Writes new text of the logs until the signal aborts. */
export async function follow(
  logs: readonly (LogFile & { end: number })[],
  { clock, signal, write }: { clock: Clock; signal: AbortSignal; write: (name: string, text: string) => void },
): Promise<void> {
  const ends = new Map(logs.map(({ path, end }) => [path, end]))
  while (!signal.aborted) {
    for (const { name, path } of logs) {
      const from = ends.get(path) ?? 0
      const { size } = await stat(path).catch((error: unknown) => {
        if (errnoOf(error) === 'ENOENT') return { size: 0 }
        throw error
      })
      if (size <= from) continue
      await using file = await open(path)
      const { buffer, bytesRead } = await file.read(Buffer.alloc(Math.min(size - from, TAIL_BYTES)), 0, undefined, from)
      ends.set(path, from + bytesRead)
      write(name, buffer.subarray(0, bytesRead).toString())
    }
    await pause(POLL_MS, signal, clock).catch(() => {})
  }
}
