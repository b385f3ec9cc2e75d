import { readdir, rm, stat } from 'node:fs/promises'
import { join } from 'node:path'
import type { Clock } from '../../lib/async/clock.ts'
import { ignoreErrno } from '../../lib/fs/errno.ts'
import type { RetentionPolicy } from './policies.ts'

const MEGABYTE = 1024 * 1024
const HOUR_MS = 3_600_000
/** Delay of a sweep after a session was added: a sweep reads the folders of all past sessions. */
const SWEEP_MS = 3000

interface Past {
  path: string
  /** When the folder was moved here, Unix milliseconds. */
  at: number
}

interface PastSessionsDeps {
  dir: string
  policy: RetentionPolicy
  clock: Clock
  problem: (error: unknown) => void
}

/** Keeps the folders of sessions that were delivered, released or lost, for inspection. Removes the oldest beyond the limits. */
export class PastSessions implements Disposable {
  readonly #deps: PastSessionsDeps
  /** Sizes of folders, by path. Past folders do not change. */
  readonly #bytes = new Map<string, number>()
  #sweeping: Promise<void> | undefined
  #isRequested = false
  #timer: (() => void) | undefined

  constructor(deps: PastSessionsDeps) {
    this.#deps = deps
  }

  /** Call after the folder of a session was moved to `path`. */
  async add(path: string): Promise<void> {
    if (this.#deps.policy.sessions === 0) await rm(path, { recursive: true, force: true })
    else this.#timer ??= this.#deps.clock.after(SWEEP_MS, () => this.#sweepLater())
  }

  #sweepLater(): void {
    this.#timer = undefined
    void this.sweep().catch((error: unknown) => this.#deps.problem(error))
  }

  [Symbol.dispose](): void {
    this.#timer?.()
  }

  /** Removes the folders beyond the limits of the policy. Calls during a sweep share the next sweep. */
  sweep(): Promise<void> {
    this.#isRequested = true
    this.#sweeping ??= this.#untilDone().finally(() => (this.#sweeping = undefined))
    return this.#sweeping
  }

  async #untilDone(): Promise<void> {
    while (this.#isRequested) {
      this.#isRequested = false
      await this.#sweepOnce()
    }
  }

  async #sweepOnce(): Promise<void> {
    const { sessions, totalMb, hours } = this.#deps.policy
    const found = (await this.#list()).toSorted((one, other) => other.at - one.at)
    const oldest = this.#deps.clock.now() - hours * HOUR_MS
    let left = totalMb * MEGABYTE
    for (const [index, { path, at }] of found.entries()) {
      if (index < sessions && at >= oldest) left -= await this.#bytesOf(path)
      if (index < sessions && at >= oldest && left >= 0) continue
      await rm(path, { recursive: true, force: true })
      this.#bytes.delete(path)
    }
  }

  async #list(): Promise<Past[]> {
    const found: Past[] = []
    for (const attempt of await namesIn(this.#deps.dir)) {
      for (const name of await namesIn(join(this.#deps.dir, attempt))) {
        const path = join(this.#deps.dir, attempt, name)
        // The rename that moved the folder here was the last change of its ctime.
        const stats = await stat(path).catch(() => undefined)
        if (stats !== undefined) found.push({ path, at: stats.ctimeMs })
      }
    }
    return found
  }

  async #bytesOf(path: string): Promise<number> {
    const known = this.#bytes.get(path)
    if (known !== undefined) return known
    const entries = await readdir(path, { recursive: true, withFileTypes: true }).catch(() => [])
    let sum = 0
    for (const entry of entries) {
      if (entry.isFile()) sum += (await stat(join(entry.parentPath, entry.name)).catch(() => undefined))?.size ?? 0
    }
    this.#bytes.set(path, sum)
    return sum
  }
}

async function namesIn(dir: string): Promise<string[]> {
  return (await readdir(dir).catch(ignoreErrno('ENOENT', 'ENOTDIR'))) ?? []
}
