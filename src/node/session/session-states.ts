import type { MonotonicClock } from '../../lib/async/clock.ts'
import { isTerminal, type SessionStatus } from '../../model/session.ts'

/**
 * Where a session may go from where it is. Everything that was begun goes through POST_RUN, where it is taken down, and
 * BUILDING once its harness has run, whatever the ending: captured calls are never thrown away.
 */
export const transitions: Readonly<Record<SessionStatus, readonly SessionStatus[]>> = {
  REGISTERED: ['INITIALIZING', 'CANCELLED'],
  INITIALIZING: ['READY', 'POST_RUN'],
  READY: ['RUNNING', 'POST_RUN'],
  RUNNING: ['POST_RUN'],
  POST_RUN: ['BUILDING', 'ERROR', 'TIMEOUT', 'CANCELLED'],
  BUILDING: ['EVALUATING', 'COMPLETED', 'ERROR', 'TIMEOUT', 'CANCELLED'],
  EVALUATING: ['COMPLETED', 'ERROR', 'TIMEOUT', 'CANCELLED'],
  COMPLETED: [],
  ERROR: [],
  TIMEOUT: [],
  CANCELLED: [],
}

export interface Transition {
  from: SessionStatus
  to: SessionStatus
  /** Unix milliseconds. */
  at: number
}

/** The state of one session. Whoever moves it where it cannot go has a bug, and is told so. */
export class SessionState {
  #status: SessionStatus = 'REGISTERED'
  readonly #since = new Map<SessionStatus, number>()
  readonly #clock: Pick<MonotonicClock, 'now' | 'monotonic'>
  readonly #note: (transition: Transition) => Promise<void>

  /** `note` stores and tells of each transition, in order. */
  constructor(clock: Pick<MonotonicClock, 'now' | 'monotonic'>, note: (transition: Transition) => Promise<void>) {
    this.#clock = clock
    this.#note = note
    this.#since.set('REGISTERED', clock.monotonic())
  }

  get status(): SessionStatus {
    return this.#status
  }

  get isOver(): boolean {
    return isTerminal(this.#status)
  }

  /** When it got there, in monotonic milliseconds; undefined when it never did. */
  since(status: SessionStatus): number | undefined {
    return this.#since.get(status)
  }

  async to(status: SessionStatus): Promise<void> {
    const from = this.#status
    if (!transitions[from].includes(status)) throw new Error(`a session cannot go from ${from} to ${status}`)
    this.#status = status
    this.#since.set(status, this.#clock.monotonic())
    await this.#note({ from, to: status, at: this.#clock.now() })
  }
}
