import { randomUUID } from 'node:crypto'
import { mkdir, readFile, rename, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import * as z from 'zod'
import { errnoOf } from '../../lib/fs/errno.ts'
import { RolloutError } from '../../model/failure.ts'

const SubmittedJob = z.strictObject({
  jobId: z.string().regex(/^\d+$/),
  /** Prefix of the node ids. */
  name: z.string(),
  /** Number of nodes. */
  tasks: z.int().min(1),
  /** Unix milliseconds. */
  submittedAt: z.number(),
  workDir: z.string(),
  script: z.string(),
  /** URL of the server that the nodes join. */
  server: z.string(),
})
export type SubmittedJob = z.infer<typeof SubmittedJob>

const SlurmRecord = z.strictObject({
  schemaVersion: z.literal(1),
  jobs: z.array(SubmittedJob),
  /** Job of the server, if it was started with --with-server. */
  server: z
    .strictObject({ jobId: z.string().regex(/^\d+$/), workDir: z.string(), url: z.string().optional() })
    .optional(),
})
export type SlurmRecord = z.infer<typeof SlurmRecord>

export function recordFile(data: string): string {
  return join(data, 'cluster', 'slurm.json')
}

/** Reads the record of submitted jobs. The record has no secrets. */
export async function readRecord(data: string): Promise<SlurmRecord> {
  const path = recordFile(data)
  try {
    return SlurmRecord.parse(JSON.parse(await readFile(path, 'utf8')))
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return { schemaVersion: 1, jobs: [] }
    const why = error instanceof Error ? error.message : String(error)
    throw new RolloutError('store.corrupt', `${path}, the record of submitted jobs, cannot be read: ${why}`, {
      cause: error,
    })
  }
}

export async function writeRecord(data: string, record: SlurmRecord): Promise<void> {
  const path = recordFile(data)
  await mkdir(dirname(path), { recursive: true, mode: 0o700 })
  const draft = `${path}.${randomUUID()}`
  await writeFile(draft, `${JSON.stringify(record, undefined, 2)}\n`, { mode: 0o600 })
  await rename(draft, path)
}

export function nodeIdOf({ name, jobId }: Pick<SubmittedJob, 'name' | 'jobId'>, task: number): string {
  return `${name}-${jobId}-${task}`
}
