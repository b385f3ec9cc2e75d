import { mkdir, open, rm, type FileHandle } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import * as z from 'zod'
import type { SessionOutcome } from '../../model/session-outcome.ts'

export const ArtifactPolicy = z.strictObject({
  keep: z
    .enum(['all', 'failures', 'none'])
    .default('all')
    .describe('Sessions whose agent and evaluator files are kept'),
  fileMb: z.number().positive().default(16).describe('Size limit of one file in MB'),
  totalMb: z.number().positive().default(128).describe('Size limit of all files of a session in MB'),
})
export type ArtifactPolicy = z.infer<typeof ArtifactPolicy>

type Artifact = SessionOutcome['artifacts'][number]

const MEGABYTE = 1024 * 1024
/** A relative path of plain names, so that it cannot leave the folder. */
const SAFE_PATH = /^(?:[A-Za-z0-9_][A-Za-z0-9._-]{0,199}\/){0,4}[A-Za-z0-9_][A-Za-z0-9._-]{0,199}$/

/**
 * Files of one session that are kept for inspection, in a folder that no sandbox can access. Files beyond the limits are
 * cut and marked as cut. A full disk loses artifacts, but does not fail the session.
 */
export class Artifacts {
  readonly #dir: string
  readonly #policy: ArtifactPolicy
  readonly #kept = new Map<string, Artifact>()
  #leftBytes: number

  constructor(dir: string, policy: ArtifactPolicy) {
    this.#dir = dir
    this.#policy = policy
    this.#leftBytes = policy.totalMb * MEGABYTE
  }

  /** False: all files are discarded at once. */
  get areKept(): boolean {
    return this.#policy.keep !== 'none'
  }

  get kept(): Artifact[] {
    return [...this.#kept.values()]
  }

  async write(path: string, data: string | Uint8Array): Promise<void> {
    const bytes = typeof data === 'string' ? Buffer.from(data) : data
    await this.copy(path, [bytes])
  }

  /**
   * Reads `pieces` to the end, also beyond the limits, so that their producer is not blocked. `totalBytes`: the size of the
   * original file, if `pieces` may be incomplete.
   */
  async copy(
    path: string,
    pieces: AsyncIterable<Uint8Array> | Iterable<Uint8Array>,
    { totalBytes = 0 }: { totalBytes?: number } = {},
  ): Promise<void> {
    if (!SAFE_PATH.test(path)) throw new TypeError(`${JSON.stringify(path)} is not a valid artifact path`)
    if (this.#policy.keep === 'none') return
    let file: FileHandle | undefined
    let leftBytes = Math.min(this.#policy.fileMb * MEGABYTE, this.#leftBytes)
    const artifact: Artifact = { path, bytes: 0, isCut: false }
    try {
      for await (const piece of pieces) {
        const part = piece.subarray(0, leftBytes)
        artifact.isCut ||= part.length < piece.length
        if (part.length === 0) continue
        try {
          file ??= await this.#open(path)
          await file.writeFile(part)
        } catch {
          artifact.isCut = true
          leftBytes = 0
          continue
        }
        artifact.bytes += part.length
        leftBytes -= part.length
        this.#leftBytes -= part.length
      }
    } finally {
      await file?.close().catch(() => {})
    }
    artifact.isCut ||= artifact.bytes < totalBytes
    if (artifact.bytes > 0 || artifact.isCut) this.#kept.set(path, artifact)
  }

  /** Removes the artifacts of a successful session, if the policy keeps only those of failures. */
  async settle({ hasFailed }: { hasFailed: boolean }): Promise<void> {
    if (this.#policy.keep !== 'failures' || hasFailed) return
    await rm(this.#dir, { recursive: true, force: true })
    this.#kept.clear()
  }

  async #open(path: string): Promise<FileHandle> {
    const file = join(this.#dir, path)
    await mkdir(dirname(file), { recursive: true, mode: 0o700 })
    return open(file, 'w', 0o600)
  }
}
