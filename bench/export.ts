import { execFile } from 'node:child_process'
import { mkdtempDisposable, readdir, rm, stat } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { recordSet } from '../test/support/recorded-set.ts'
import type { BenchOptions } from './run.ts'
import { printTitledTable } from './support/table.ts'

const FORMATS = ['jsonl', 'slime', 'parquet', 'verl'] as const

/** Each session has 20 calls, 40,000 tokens at its end, about 0.28 MB of call log. */
const SESSION = { turns: 20, addedIds: 1500, sampledIds: 500 }
const SESSIONS = 400
/** A gigabyte of call logs. */
const LONG_SESSIONS = 3600

/** Measures the export of call logs to a trainer's files: speed, and memory beyond that of the bare program. */
export async function benchExport({ long }: Pick<BenchOptions, 'long'>): Promise<void> {
  await using folder = await mkdtempDisposable(join(tmpdir(), 'polar-bench-'))
  const dir = join(folder.path, 'sessions')
  await recordSet({ dir, sessions: long ? LONG_SESSIONS : SESSIONS, ...SESSION })
  const logs = await bytesIn(dir)
  const tokens = (long ? LONG_SESSIONS : SESSIONS) * SESSION.turns * (SESSION.addedIds + SESSION.sampledIds)
  const rows: string[][] = []
  for (const format of FORMATS) {
    const to = join(folder.path, `out.${format}`)
    const { seconds, before, peak } = await measure(dir, format, to)
    const written = await bytesIn(to)
    await rm(to, { recursive: true })
    rows.push([
      format,
      `${seconds.toFixed(1)} s`,
      (logs / 1e6 / seconds).toFixed(1),
      (tokens / 1e6 / seconds).toFixed(2),
      (written / 1e6).toFixed(0),
      (written / tokens).toFixed(1),
      ((peak - before) / 1e6).toFixed(0),
    ])
  }
  printTitledTable(`${(logs / 1e6).toFixed(0)} MB of call logs, ${(tokens / 1e6).toFixed(0)} M tokens in traces`, [
    ['format', 'time', 'MB/s of logs', 'M tokens/s', 'MB written', 'bytes a token', 'MB of memory'],
    ...rows,
  ])
}

/** Runs in a separate process, to measure its own memory peak. */
async function measure(
  dir: string,
  format: string,
  to: string,
): Promise<{ seconds: number; before: number; peak: number }> {
  const script = fileURLToPath(new URL('../test/support/export-run.ts', import.meta.url))
  const { stdout } = await promisify(execFile)(process.execPath, [script, dir, format, to])
  return JSON.parse(stdout) as { seconds: number; before: number; peak: number }
}

async function bytesIn(place: string): Promise<number> {
  const info = await stat(place)
  if (info.isFile()) return info.size
  let sum = 0
  for (const name of await readdir(place)) sum += await bytesIn(join(place, name))
  return sum
}
