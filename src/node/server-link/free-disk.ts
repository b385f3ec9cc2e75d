import { statfs } from 'node:fs/promises'
import type { Logger } from 'pino'

const MEGABYTE = 1024 * 1024
/** How long a measurement is used. */
const RECHECK_MS = 5000

/** Measures the free space on the disk of the node's folder. The minimum is left for running sessions. */
export class FreeDisk {
  readonly #dir: string
  readonly #minFreeMb: number
  readonly #now: () => number
  readonly #logger: Logger
  #checkedAt = -Infinity
  #isLow = false
  #freeMb: number | undefined

  constructor({ dir, minFreeMb, now, logger }: { dir: string; minFreeMb: number; now: () => number; logger: Logger }) {
    this.#dir = dir
    this.#minFreeMb = minFreeMb
    this.#now = now
    this.#logger = logger
  }

  get isLow(): boolean {
    return this.#isLow
  }

  /** Undefined before the first check, and if the file system does not report it. */
  get freeMb(): number | undefined {
    return this.#freeMb
  }

  /** Returns whether the free space is low. A file system that does not report free space is never low. */
  async check(): Promise<boolean> {
    if (this.#now() - this.#checkedAt < RECHECK_MS) return this.#isLow
    this.#checkedAt = this.#now()
    try {
      const { bavail, bsize } = await statfs(this.#dir)
      this.#freeMb = (bavail * bsize) / MEGABYTE
    } catch {
      this.#freeMb = undefined
    }
    const isLow = (this.#freeMb ?? Infinity) < this.#minFreeMb
    if (isLow !== this.#isLow) this.#log(isLow)
    this.#isLow = isLow
    return isLow
  }

  #log(isLow: boolean): void {
    const fields = { dir: this.#dir, freeMb: Math.floor(this.#freeMb ?? 0), minFreeMb: this.#minFreeMb }
    if (isLow) this.#logger.warn(fields, 'disk space is low; the node leases no sessions until more is free')
    else this.#logger.info(fields, 'disk space is sufficient again')
  }
}
