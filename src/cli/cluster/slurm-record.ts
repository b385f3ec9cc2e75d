import { randomUUID } from 'node:crypto'
import { mkdir, readFile, rename, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import * as z from 'zod'
import { errnoOf } from '../../lib/fs/errno.ts'
import { RolloutError } from '../../model/failure.ts'

const SubmittedJob = z.strictObject({
  jobId: z.string().regex(/^\d+$/),
  /** What the ids of its nodes begin with. */
  name: z.string(),
  /** How many nodes it has. */
  tasks: z.int().min(1),
  /** Unix milliseconds. */
  submittedAt: z.number(),
  workDir: z.string(),
  script: z.string(),
  /** The server its nodes were given. */
  server: z.string(),
})
export type SubmittedJob = z.infer<typeof SubmittedJob>

const SlurmRecord = z.strictObject({
  schemaVersion: z.literal(1),
  jobs: z.array(SubmittedJob),
  /** The job that is the server, where we started that too. */
  server: z
    .strictObject({ jobId: z.string().regex(/^\d+$/), workDir: z.string(), url: z.string().optional() })
    .optional(),
})
export type SlurmRecord = z.infer<typeof SlurmRecord>

export function recordFile(data: string): string {
  return join(data, 'cluster', 'slurm.json')
}

/** What was submitted from here. No secret is in it. */
export async function readRecord(data: string): Promise<SlurmRecord> {
  const path = recordFile(data)
  try {
    return SlurmRecord.parse(JSON.parse(await readFile(path, 'utf8')))
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return { schemaVersion: 1, jobs: [] }
    const why = error instanceof Error ? error.message : String(error)
    throw new RolloutError('store.corrupt', `${path} cannot be read, so nobody knows which jobs are ours: ${why}`, {
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
