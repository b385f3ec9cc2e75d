import { statfs } from 'node:fs/promises'
import type { Logger } from 'pino'

const MEGABYTE = 1024 * 1024
/** Asking costs little, but not nothing. */
const ASK_AGAIN_MS = 5000

/** Whether there is room for more sessions where the node keeps them. What runs may need what is left. */
export class FreeDisk {
  readonly #dir: string
  readonly #minFreeMb: number
  readonly #now: () => number
  readonly #logger: Logger
  #askedAt = -Infinity
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

  /** Undefined before it was first asked, and where nobody can tell. */
  get freeMb(): number | undefined {
    return this.#freeMb
  }

  /** A file system that cannot be asked counts as having room: what does not fit says so itself. */
  async check(): Promise<boolean> {
    if (this.#now() - this.#askedAt < ASK_AGAIN_MS) return this.#isLow
    this.#askedAt = this.#now()
    try {
      const { bavail, bsize } = await statfs(this.#dir)
      this.#freeMb = (bavail * bsize) / MEGABYTE
    } catch {
      this.#freeMb = undefined
    }
    const isLow = (this.#freeMb ?? Infinity) < this.#minFreeMb
    if (isLow !== this.#isLow) this.#tell(isLow)
    this.#isLow = isLow
    return isLow
  }

  #tell(isLow: boolean): void {
    const fields = { dir: this.#dir, freeMb: Math.floor(this.#freeMb ?? 0), minFreeMb: this.#minFreeMb }
    if (isLow) this.#logger.warn(fields, 'too little disk is free: no new sessions are taken until there is more')
    else this.#logger.info(fields, 'enough disk is free again')
  }
}
