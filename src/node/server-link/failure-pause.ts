import type { Logger } from 'pino'
import { failureClasses } from '../../model/failure.ts'
import type { SessionOutcome } from '../../model/session-outcome.ts'

/** A pause begins after this many failures in a row, of this many tasks: then no single task is the cause. */
const MAX_FAILURES = 6
const MIN_TASKS = 3
const FIRST_PAUSE_MS = 10_000
const MAX_PAUSE_MS = 300_000

/**
 * Pauses leasing on a node where all sessions fail because of infrastructure (engine, disk, sandbox). Such sessions fail
 * fast, so the node would use up a queue that other nodes could work on. Each pause is longer than the last. After a pause
 * the node runs one session at a time until one succeeds.
 */
export class FailurePause {
  readonly #now: () => number
  readonly #logger: Logger
  readonly #tasks = new Set<string>()
  #failures = 0
  #pauses = 0
  #until = -Infinity

  /** `now` returns monotonic milliseconds. */
  constructor(now: () => number, logger: Logger) {
    this.#now = now
    this.#logger = logger
  }

  get isPaused(): boolean {
    return this.#now() < this.#until
  }

  /** How many sessions the node may run at a time. */
  get maxSessions(): number {
    if (this.isPaused) return 0
    return this.#pauses > 0 ? 1 : Infinity
  }

  note({ taskId, failure }: Pick<SessionOutcome, 'taskId' | 'failure'>): void {
    if (failure === undefined || failureClasses[failure.code].blame !== 'infrastructure') return this.#reset()
    this.#failures += 1
    this.#tasks.add(taskId)
    const isTrial = this.#pauses > 0
    if (!isTrial && (this.#failures < MAX_FAILURES || this.#tasks.size < MIN_TASKS)) return
    this.#pause(failure.message)
  }

  /** The outcome of a session could not be written. */
  noteUnwritable(): void {
    this.#pause('the disk cannot be written to')
  }

  #pause(why: string): void {
    if (this.isPaused) return
    const ms = Math.min(MAX_PAUSE_MS, FIRST_PAUSE_MS * 2 ** this.#pauses)
    this.#until = this.#now() + ms
    this.#pauses += 1
    this.#failures = 0
    this.#tasks.clear()
    this.#logger.error({ why, pauseSeconds: ms / 1000 }, 'all sessions fail on this node; leasing is paused')
  }

  #reset(): void {
    if (this.#pauses > 0) this.#logger.info('a session succeeded; leasing resumes')
    this.#failures = 0
    this.#pauses = 0
    this.#until = -Infinity
    this.#tasks.clear()
  }
}
