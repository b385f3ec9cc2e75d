import { statfs } from 'node:fs/promises'
import type { Logger } from 'pino'

const MEGABYTE = 1024 * 1024
/** How long a measurement is used. */
const RECHECK_MS = 5000

interface FreeDiskOptions {
  dir: string
  minFreeMb: number
  /** Monotonic milliseconds. */
  now: () => number
  logger: Logger
}

/** Measures the free space on the disk of the node's folder. The minimum is left for running sessions. */
export class FreeDisk {
  readonly #options: FreeDiskOptions
  #checkedAt = -Infinity
  #isLow = false
  #freeMb: number | undefined

  constructor(options: FreeDiskOptions) {
    this.#options = options
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
    const { dir, minFreeMb, now } = this.#options
    if (now() - this.#checkedAt < RECHECK_MS) return this.#isLow
    this.#checkedAt = now()
    try {
      const { bavail, bsize } = await statfs(dir)
      this.#freeMb = (bavail * bsize) / MEGABYTE
    } catch {
      this.#freeMb = undefined
    }
    const isLow = (this.#freeMb ?? Infinity) < minFreeMb
    if (isLow !== this.#isLow) this.#log(isLow)
    this.#isLow = isLow
    return isLow
  }

  #log(isLow: boolean): void {
    const { dir, minFreeMb, logger } = this.#options
    const fields = { dir, freeMb: Math.floor(this.#freeMb ?? 0), minFreeMb }
    if (isLow) logger.warn(fields, 'disk space is low; the node leases no sessions until more is free')
    else logger.info(fields, 'disk space is sufficient again')
  }
}
