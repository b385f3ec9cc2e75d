import type { Logger } from 'pino'
import { failureClasses } from '../../model/failure.ts'
import type { SessionOutcome } from '../../model/session-outcome.ts'

/** So many in a row, of so many tasks: then it is not a task that is to blame. */
const MOST_SPOILT = 6
const MOST_TASKS = 3
const FIRST_REST_MS = 10_000
const LONGEST_REST_MS = 300_000

/**
 * A node on which everything fails, for want of an engine, a disk or a sandbox, fails fast, and would spoil a whole queue
 * while others could work on it. So it rests, longer each time, and then tries one session at a time until one succeeds.
 */
export class Brake {
  readonly #now: () => number
  readonly #logger: Logger
  readonly #tasks = new Set<string>()
  #spoilt = 0
  #rests = 0
  #until = -Infinity

  /** `now` only goes forward. */
  constructor(now: () => number, logger: Logger) {
    this.#now = now
    this.#logger = logger
  }

  get isResting(): boolean {
    return this.#now() < this.#until
  }

  /** How many may be tried at a time. */
  get most(): number {
    if (this.isResting) return 0
    return this.#rests > 0 ? 1 : Infinity
  }

  note({ taskId, failure }: Pick<SessionOutcome, 'taskId' | 'failure'>): void {
    if (failure === undefined || failureClasses[failure.code].blame !== 'infrastructure') return this.#release()
    this.#spoilt += 1
    this.#tasks.add(taskId)
    const isTrial = this.#rests > 0
    if (!isTrial && (this.#spoilt < MOST_SPOILT || this.#tasks.size < MOST_TASKS)) return
    this.#rest(failure.message)
  }

  /** Not even how a session ended could be kept. */
  noteBroken(): void {
    this.#rest('the disk cannot be written to')
  }

  #rest(why: string): void {
    if (this.isResting) return
    const ms = Math.min(LONGEST_REST_MS, FIRST_REST_MS * 2 ** this.#rests)
    this.#until = this.#now() + ms
    this.#rests += 1
    this.#spoilt = 0
    this.#tasks.clear()
    this.#logger.error(
      { why, restSeconds: ms / 1000 },
      'session after session fails here: no new ones are taken for a while',
    )
  }

  #release(): void {
    if (this.#rests > 0) this.#logger.info('a session succeeded again')
    this.#spoilt = 0
    this.#rests = 0
    this.#until = -Infinity
    this.#tasks.clear()
  }
}
