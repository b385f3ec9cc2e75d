import { mkdir, open, rm, type FileHandle } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import * as z from 'zod'
import type { SessionOutcome } from '../../model/session-outcome.ts'

export const ArtifactPolicy = z.strictObject({
  keep: z
    .enum(['all', 'failures', 'none'])
    .default('all')
    .describe('Which sessions keep what their agent and evaluator wrote'),
  fileMb: z.number().positive().default(16).describe('Most of one file that is kept'),
  totalMb: z.number().positive().default(128).describe('Most that is kept of one session'),
})
export type ArtifactPolicy = z.infer<typeof ArtifactPolicy>

type Artifact = SessionOutcome['artifacts'][number]

const MEGABYTE = 1024 * 1024
/** A path of plain names, so that nothing it says leads elsewhere. */
const SAFE_PATH = /^(?:[A-Za-z0-9_][A-Za-z0-9._-]{0,199}\/){0,4}[A-Za-z0-9_][A-Za-z0-9._-]{0,199}$/

/**
 * What is kept of one session for people to look at. Lies where no sandbox can reach. What is too much is cut off, and
 * said to be; a disk that is full costs artifacts, not sessions.
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

  /** False: whatever is written is thrown away at once. */
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
   * Reads all of it, also what is not kept, so that whoever writes is not held up. `totalBytes`: how much there was, where
   * not all of it is given.
   */
  async copy(
    path: string,
    pieces: AsyncIterable<Uint8Array> | Iterable<Uint8Array>,
    { totalBytes = 0 }: { totalBytes?: number } = {},
  ): Promise<void> {
    if (!SAFE_PATH.test(path)) throw new TypeError(`${JSON.stringify(path)} is no path for an artifact`)
    if (this.#policy.keep === 'none') return
    let file: FileHandle | undefined
    let room = Math.min(this.#policy.fileMb * MEGABYTE, this.#leftBytes)
    const artifact: Artifact = { path, bytes: 0, isCut: false }
    try {
      for await (const piece of pieces) {
        const part = piece.subarray(0, room)
        artifact.isCut ||= part.length < piece.length
        if (part.length === 0) continue
        try {
          file ??= await this.#open(path)
          await file.writeFile(part)
        } catch {
          artifact.isCut = true
          room = 0
          continue
        }
        artifact.bytes += part.length
        room -= part.length
        this.#leftBytes -= part.length
      }
    } finally {
      await file?.close().catch(() => {})
    }
    artifact.isCut ||= artifact.bytes < totalBytes
    if (artifact.bytes > 0 || artifact.isCut) this.#kept.set(path, artifact)
  }

  /** Once it is known how the session ended. */
  async settle({ hasFailed }: { hasFailed: boolean }): Promise<void> {
    if (this.#policy.keep !== 'failures' || hasFailed) return
    await rm(this.#dir, { recursive: true, force: true })
    this.#kept.clear()
  }

  async #open(path: string): Promise<FileHandle> {
    const place = join(this.#dir, path)
    await mkdir(dirname(place), { recursive: true, mode: 0o700 })
    return open(place, 'w', 0o600)
  }
}
